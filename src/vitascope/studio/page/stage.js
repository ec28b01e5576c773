// The picture: fetched as time and corrections move on, compared by a wipe, painted on, clicked, looked around in.

import { address, get } from "./api.js";
import { $, make } from "./parts.js";

const SIDES = [480, 640, 960, 1280, 1920];
const SOURCE_AFTER_MS = 180; // a matte that takes longer is bridged by the source picture
const SLIP = 0.01; // a click may move so far
const LEAST_STEP = 0.004; // between two points of a stroke, as a share of the width

export class Stage {
  // `asked` gives what to show now: {film, revision, seconds, view, beside, eye, look, background}.
  constructor(asked, { onpaint, onpick, onlook, onshown }) {
    this.asked = asked; this.onpaint = onpaint; this.onpick = onpick; this.onlook = onlook; this.onshown = onshown;
    this.urls = new Map(); this.mode = "picks"; this.radius = 0.03; this.removes = false;
    this.tall = 1; // the height of a stroke beside its width, which is round in the video's own pixels
    this.stroke = null; this.pointer = null; this.wanted = 0; this.shownKey = null;
    this.element = $("picture"); this.canvas = $("marks");
    new ResizeObserver(() => this.draw()).observe(this.element);
    this.#listen();
  }

  get side() {
    const wide = Math.max(this.element.clientWidth, this.element.clientHeight) * Math.min(devicePixelRatio, 2);
    return SIDES.find((side) => side >= wide * 0.9) ?? SIDES.at(-1);
  }

  shape(film, looks) {
    this.element.style.setProperty("--aspect", looks ? 16 / 9 : film.aspect);
    this.tall = looks ? 1 : film.width / film.height / film.aspect;
    for (const id of ["shown", "beside"]) $(id).removeAttribute("src");
    this.shownKey = null;
  }

  // Ask for what is to be seen now. One request at a time; the newest wish follows it.
  refresh() {
    this.wanted += 1;
    this.running ??= this.#run().finally(() => { this.running = null; });
    return this.running;
  }

  async #run() {
    let done = 0;
    while (done !== this.wanted) {
      done = this.wanted;
      const ask = this.asked();
      if (!ask) continue;
      const key = JSON.stringify(ask);
      if (key === this.shownKey) continue;
      let waits = null;
      try {
        $("working").hidden = ask.view === "source";
        const both = ask.beside && ask.beside !== ask.view;
        if (ask.view !== "source" || (both && ask.beside !== "source")) {
          waits = setTimeout(() => this.#bridge(ask, () => done === this.wanted || this.running), SOURCE_AFTER_MS);
        }
        const [left, right] = await Promise.all([this.#picture(ask, ask.view, ask.beside), both ? this.#picture(ask, ask.beside, ask.view) : null]);
        clearTimeout(waits);
        this.bridged = null;
        this.#place("shown", left.url); this.#place("beside", right?.url);
        this.shownKey = key;
        this.note(null);
        this.onshown({ seconds: left.seconds });
      } catch (problem) {
        clearTimeout(waits);
        this.#place("beside", null);
        this.onshown({ problem });
      } finally {
        $("working").hidden = true;
      }
    }
  }

  // The source picture until the matte is there, so that a video can be scrubbed through.
  async #bridge(ask, isStillWanted) {
    this.bridged = ask;
    try {
      const source = await this.#picture({ ...ask, beside: null }, "source");
      if (this.bridged === ask && isStillWanted()) { this.#place("shown", source.url); this.#place("beside", null); this.onshown({ seconds: source.seconds }); }
    } catch { /* the matted picture will say why */ }
  }

  async #picture(ask, view, beside) {
    const look = ask.look ?? {};
    const query = {
      version: ask.film.version, t: ask.seconds.toFixed(4), view, eye: ask.film.eyes > 1 ? ask.eye : undefined, side: this.side,
      ...(view === "source" ? {} : { revision: ask.revision, beside, background: ask.background }),
      yaw: look.yaw?.toFixed(1), pitch: look.pitch?.toFixed(1), fov: look.fov?.toFixed(0),
    };
    const response = await get(`/api/films/${ask.film.id}/frame`, query);
    return { url: URL.createObjectURL(await response.blob()), seconds: Number(response.headers.get("X-Seconds")) };
  }

  #place(id, url) {
    const image = $(id), old = this.urls.get(id);
    image.hidden = !url && id === "beside";
    $("wipe").hidden = $("beside").hidden;
    if (url) { image.src = url; this.urls.set(id, url); }
    else if (id === "beside") { image.removeAttribute("src"); this.urls.delete(id); }
    if (old && old !== url) setTimeout(() => URL.revokeObjectURL(old), 1000);
  }

  note(text, ...actions) {
    const note = $("stage-note");
    note.hidden = !text;
    note.replaceChildren(...(text ? [make("span", {}, text), ...actions] : []));
  }

  setMode(mode) { // "paints", "picks", "looks" or "rests"
    this.mode = mode; this.stroke = null;
    for (const one of ["paints", "picks", "looks"]) this.element.classList.toggle(one, one === mode);
    this.element.classList.toggle("boxes", mode === "paints" && Boolean(this.isBox));
    this.draw();
  }

  setWipe(share) {
    this.wipeAt = Math.min(Math.max(share, 0), 1);
    this.element.style.setProperty("--wipe", `${this.wipeAt * 100}%`);
    $("beside").style.clipPath = `inset(0 0 0 ${this.wipeAt * 100}%)`;
    $("wipe").setAttribute("aria-valuenow", Math.round(this.wipeAt * 100));
  }

  #share(event) {
    const box = this.element.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  }

  #listen() {
    const wipe = $("wipe");
    this.setWipe(0.5);
    wipe.addEventListener("pointerdown", (event) => { wipe.setPointerCapture(event.pointerId); event.stopPropagation(); });
    wipe.addEventListener("pointermove", (event) => { if (wipe.hasPointerCapture(event.pointerId)) this.setWipe(this.#share(event)[0]); });
    wipe.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -0.05, ArrowRight: 0.05 }[event.key];
      if (step) { this.setWipe(this.wipeAt + step); event.preventDefault(); event.stopPropagation(); }
    });
    const area = this.element;
    area.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      const point = this.#share(event);
      area.setPointerCapture(event.pointerId);
      const { look } = this.asked() ?? {};
      if (this.mode === "paints" && !(look && event.shiftKey)) { this.stroke = [point]; this.draw(); }
      else if (look) { this.held = { point, look }; area.classList.add("held"); }
      else if (this.mode === "picks") this.onpick(point);
    });
    area.addEventListener("pointermove", (event) => {
      const point = this.#share(event);
      this.pointer = point;
      if (this.stroke) {
        const last = this.stroke.at(-1);
        if (Math.hypot(point[0] - last[0], point[1] - last[1]) >= LEAST_STEP) this.stroke.push(point);
      }
      if (this.held) {
        const { look } = this.held, tall = look.fov * 9 / 16;
        this.onlook({ ...look, yaw: wrapped(look.yaw - (point[0] - this.held.point[0]) * look.fov), pitch: Math.min(Math.max(look.pitch + (point[1] - this.held.point[1]) * tall, -90), 90) });
      }
      if (this.mode === "paints") this.draw();
    });
    const end = (event) => {
      area.classList.remove("held");
      const { stroke, held } = this;
      this.stroke = this.held = null;
      const point = this.#share(event);
      if (held && this.mode === "picks" && event.type === "pointerup" && Math.hypot(point[0] - held.point[0], point[1] - held.point[1]) < SLIP) this.onpick(point);
      if (stroke && event.type === "pointerup") this.onpaint(stroke);
      this.draw();
    };
    area.addEventListener("pointerup", end);
    area.addEventListener("pointercancel", end);
    area.addEventListener("pointerleave", () => { this.pointer = null; this.draw(); });
    area.addEventListener("wheel", (event) => {
      const { look } = this.asked() ?? {};
      if (!look) return;
      event.preventDefault();
      this.onlook({ ...look, fov: Math.min(Math.max(look.fov + event.deltaY * 0.05, 40), 110) });
    }, { passive: false });
  }

  // Strokes of this frame, the one that is being painted, and the brush.
  draw(marks = this.marks ?? []) {
    this.marks = marks;
    const { canvas } = this, scale = Math.min(devicePixelRatio, 2);
    const width = canvas.clientWidth, height = canvas.clientHeight;
    if (canvas.width !== width * scale || canvas.height !== height * scale) { canvas.width = width * scale; canvas.height = height * scale; }
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    if (this.mode !== "paints") return;
    if (!this.asked()?.look && marks.length && width && height) pen.drawImage(this.#lines(marks, width, height, scale), 0, 0, width, height);
    const outline = (corners) => {
      pen.setLineDash([6, 5]); pen.lineWidth = 2; pen.strokeStyle = "#ff5a4f";
      pen.beginPath();
      for (const [x, y] of corners) pen.lineTo(x * width, y * height);
      pen.closePath(); pen.stroke(); pen.setLineDash([]);
    };
    if (!this.asked()?.look) for (const { polygon } of this.boxes ?? []) outline(polygon);
    if (this.stroke && this.isBox) outline(boxOf(this.stroke[0], this.stroke.at(-1)));
    else if (this.stroke) paint(pen, this.stroke, { width, height, radius: this.radius, tall: this.tall, removes: this.removes, alpha: 0.55 });
    if (this.pointer && !this.isBox) {
      pen.beginPath();
      const across = this.radius * width;
      pen.ellipse(this.pointer[0] * width, this.pointer[1] * height, across, across * this.tall, 0, 0, 7);
      pen.lineWidth = 3; pen.strokeStyle = "#000a"; pen.stroke();
      pen.lineWidth = 1.5; pen.strokeStyle = this.removes ? "#ff8a81" : "#8df0bf"; pen.stroke();
    }
  }

  // What a saved stroke did is in the picture by now; a line says where it is. Thousands of them are drawn once, not with
  // each move of the mouse.
  #lines(marks, width, height, scale) {
    const { lines } = this;
    if (lines?.marks === marks && lines.canvas.width === Math.round(width * scale) && lines.canvas.height === Math.round(height * scale)) return lines.canvas;
    const canvas = make("canvas", { width: Math.round(width * scale), height: Math.round(height * scale) }), pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    for (const mark of marks) paint(pen, mark.stroke, { width, height, radius: 1.2 / width, removes: mark.do === "remove", alpha: 0.9 });
    this.lines = { marks, canvas };
    return canvas;
  }
}

function paint(pen, points, { width, height, radius, tall = 1, removes, alpha }) {
  pen.save(); pen.scale(1, tall);
  pen.globalAlpha = alpha;
  pen.strokeStyle = removes ? "#ff5a4f" : "#35d68a";
  pen.lineCap = pen.lineJoin = "round";
  pen.lineWidth = 2 * radius * width;
  pen.beginPath();
  for (const [x, y] of points.length > 1 ? points : [points[0], points[0]]) pen.lineTo(x * width, y * height / tall);
  pen.stroke();
  pen.restore();
}

export const boxOf = ([left, top], [right, bottom]) => [[left, top], [right, top], [right, bottom], [left, bottom]];
const wrapped = (degrees) => ((degrees + 540) % 360) - 180;

export const thumbnail = (film, seconds) => address(`/api/films/${film.id}/frame`, { version: film.version, t: seconds.toFixed(3), view: "source", side: 160 });
