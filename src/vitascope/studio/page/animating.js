// A portrait that moves as a driver does: choose both, look at any moment at any strength, record.

import { address, get, send } from "./api.js";
import { $, clock, make, memory, toast } from "./parts.js";

const POLL_MS = 400;
const STRENGTHS = ["expression", "pose"];

export class Portraits {
  constructor() {
    this.portrait = null; this.driver = null; this.isOpen = false; this.isPlaying = false; this.isDrawing = false; this.isStale = false;
    for (const name of STRENGTHS) $(name).addEventListener("input", () => { this.#figures(); this.draw(); });
    $("animate-time").addEventListener("input", () => { this.isPlaying = false; this.#moved(); this.draw(); });
    $("animate-play").addEventListener("click", () => (this.isPlaying ? this.pause() : this.play()));
    $("driver").addEventListener("change", () => this.drive($("driver").value));
    $("record").addEventListener("submit", (event) => { event.preventDefault(); this.#record(); });
  }

  get seconds() { return Number($("animate-time").value); }

  open({ films, pictures, voices }) {
    this.isOpen = true;
    $("animate-jobs").append($("jobs-box"));
    const chosen = pictures.find(({ id }) => id === memory.get("portrait", "")) ?? pictures[0];
    $("portraits").replaceChildren(...pictures.map((picture) => make("label", { title: picture.name },
      make("input", { type: "radio", name: "portrait", checked: picture === chosen, onchange: () => this.sit(picture) }),
      make("img", { src: address(`/api/films/${picture.id}/frame`, { t: 0, view: "source", side: 160 }), alt: "", loading: "lazy" }), make("span", {}, picture.name))));
    const drivers = [...films.filter(({ isBroken }) => !isBroken), ...voices];
    $("driver").replaceChildren(...drivers.map(({ id, name }) => make("option", { value: id }, name)));
    $("driver").value = drivers.some(({ id }) => id === memory.get("driver", "")) ? memory.get("driver", "") : drivers[0]?.id ?? "";
    this.#figures();
    this.sit(chosen);
    if (drivers.length) this.drive($("driver").value);
    else this.#note("There is no video or sound in your folder to drive it.");
  }

  close() { this.isOpen = false; this.pause(); $("cut").append($("jobs-box")); }

  sit(picture) {
    this.portrait = picture; memory.set("portrait", picture.id);
    this.draw();
  }

  // The driver's face is read once; until then the portrait is at rest.
  async drive(id) {
    this.pause();
    this.driver = id; memory.set("driver", id);
    $("animate-time").value = 0; $("animate-time").max = 0; this.#moved();
    this.draw();
    while (this.isOpen && this.driver === id) {
      let motion;
      try { motion = await (await get(`/api/films/${id}/motion`)).json(); } catch (problem) { this.#note(problem.message); return; }
      if (this.driver !== id) return;
      if (motion.error) { this.#note(motion.error); return; }
      if (motion.complete) {
        this.#note("");
        $("animate-time").max = motion.seconds; this.#moved();
        this.draw();
        return;
      }
      this.#note(`Reading how the face moves: ${Math.round(motion.read * 100)} %`);
      await new Promise((resolve) => { setTimeout(resolve, POLL_MS); });
    }
  }

  // One picture is asked for at a time; the newest wish is the next.
  async draw() {
    this.isStale = true;
    if (this.isDrawing) return;
    this.isDrawing = true;
    const late = setTimeout(() => { $("animate-working").hidden = false; }, 250);
    try {
      while (this.isStale && this.isOpen && this.portrait && this.driver) {
        this.isStale = false;
        const picture = await get(`/api/films/${this.driver}/animated`, { portrait: this.portrait.id, t: this.seconds, expression: $("expression").value, pose: $("pose").value, side: 960 });
        const before = $("animated").src;
        $("animated").src = URL.createObjectURL(await picture.blob());
        await $("animated").decode().catch(() => {});
        if (before.startsWith("blob:")) URL.revokeObjectURL(before);
      }
    } catch (problem) { this.pause(); this.#note(problem.message); } finally {
      clearTimeout(late); $("animate-working").hidden = true; this.isDrawing = false;
    }
  }

  async play() {
    this.isPlaying = true;
    $("animate-play").closest(".transport").classList.add("playing"); $("animate-play").setAttribute("aria-label", "Pause");
    const last = Number($("animate-time").max);
    let before = performance.now();
    while (this.isPlaying && last) {
      await this.draw();
      await new Promise((resolve) => { setTimeout(resolve, 8); });
      const now = performance.now(), next = this.seconds + (now - before) / 1000;
      before = now;
      $("animate-time").value = next >= last ? 0 : next; // again from its beginning
      this.#moved();
    }
    this.pause();
  }

  pause() {
    this.isPlaying = false;
    $("animate-play").closest(".transport").classList.remove("playing"); $("animate-play").setAttribute("aria-label", "Play");
  }

  async #record() {
    const order = { task: "animate", portrait: this.portrait?.id, ...Object.fromEntries(STRENGTHS.map((name) => [name, Number($(name).value)])) };
    try { await send("POST", `/api/films/${this.driver}/jobs`, order); } catch (problem) { toast(problem.message); }
  }

  #moved() { $("animate-clock").replaceChildren(clock(this.seconds, 2), make("small", {}, ` / ${clock(Number($("animate-time").max))}`)); }
  #figures() { for (const name of STRENGTHS) $(`${name}-out`).textContent = `${Math.round($(name).value * 100)} %`; }
  #note(text) { $("animate-note").hidden = !text; $("animate-note").textContent = text; }
}
