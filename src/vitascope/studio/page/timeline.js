// The video as a strip: thumbnails, cuts, strokes, when each person is seen; and where one is.

import { keptWhile } from "./corrections.js";
import { $, clock, make, personColor } from "./parts.js";
import { thumbnail } from "./stage.js";

const THUMB_WIDTH = 86;
const AT_ONCE = 2; // thumbnails that are asked for at a time: the picture itself comes first

export class Timeline {
  constructor(onseek) {
    this.onseek = onseek;
    this.element = $("timeline");
    const seek = (event) => {
      const box = this.element.getBoundingClientRect();
      this.onseek(((event.clientX - box.left) / box.width) * this.film.seconds, event.type !== "pointermove");
    };
    this.element.addEventListener("pointerdown", (event) => { this.element.setPointerCapture(event.pointerId); this.isHeld = true; seek(event); });
    this.element.addEventListener("pointermove", (event) => { if (this.isHeld) seek(event); });
    for (const name of ["pointerup", "pointercancel"]) this.element.addEventListener(name, () => { this.isHeld = false; });
    new ResizeObserver(() => { if (this.film) this.#thumbs(); }).observe(this.element);
  }

  open(film) {
    this.film = film; this.count = 0;
    this.element.setAttribute("aria-valuemax", film.seconds.toFixed(1));
    $("lanes").replaceChildren(); $("notches").replaceChildren();
    this.#thumbs();
  }

  #thumbs() {
    const count = Math.max(Math.min(Math.round(this.element.clientWidth / THUMB_WIDTH), 40), 4);
    if (count === this.count) return;
    this.count = count;
    const { film } = this;
    const images = Array.from({ length: count }, () => make("img", { alt: "" }));
    $("thumbs").replaceChildren(...images);
    const waiting = images.map((image, at) => [image, ((at + 0.5) / count) * film.seconds]);
    const next = () => {
      const one = waiting.shift();
      if (!one || this.film !== film || this.count !== count) return;
      const [image, seconds] = one;
      image.onload = () => { image.classList.add("there"); next(); };
      image.onerror = next;
      image.src = thumbnail(film, seconds);
    };
    for (let n = 0; n < AT_ONCE; n += 1) next();
  }

  at(seconds) {
    const { film } = this;
    this.element.style.setProperty("--at", `${(seconds / film.seconds) * 100}%`);
    this.element.setAttribute("aria-valuenow", seconds.toFixed(2));
    this.element.setAttribute("aria-valuetext", `${clock(seconds, 1)} of ${clock(film.seconds)}`);
  }

  mark(cuts, document, people, meant) {
    const place = (seconds) => `${(seconds / this.film.seconds) * 100}%`;
    const set = (element, left, width) => { element.style.left = place(left); if (width !== undefined) element.style.width = place(width); return element; };
    $("notches").replaceChildren(
      ...cuts.map((cut) => set(make("i"), cut)),
      ...(document.marks ?? []).filter((mark) => mark.stroke).slice(-500).map((mark) => set(make("b", { class: mark.do === "remove" ? "remove" : "" }), mark.at)),
    );
    $("lanes").replaceChildren(...people.slice(0, 8).map((person) => {
      const lane = make("div", { class: "lane" });
      lane.style.setProperty("--person", personColor(person.number));
      for (const seen of person.seen) {
        const isGone = keptWhile(document, person.number, seen.begin_seconds, seen.end_seconds, meant) === "gone";
        lane.append(set(make("i", { class: isGone ? "gone" : "" }), seen.begin_seconds, seen.end_seconds - seen.begin_seconds));
      }
      return lane;
    }));
  }
}
