// What shall be made, and the jobs: their progress, what limits them, their results.

import { address, send } from "./api.js";
import { $, clock, make, megabytes, showing, toast } from "./parts.js";

const KINDS = [
  { value: "key", label: "Green screen", about: "People on one colour, for any editor (MP4)" },
  { value: "alpha", label: "Transparent", about: "For compositing (ProRes 4444, MOV)" },
  { value: "mask", label: "Matte", about: "White people on black (MP4)" },
  { value: "blur", label: "Blurred background", about: "As in a video call (MP4)" },
  { value: "replace", label: "New background", about: "A picture from your folder (MP4)" },
  { value: "packed-alpha", label: "For a headset", about: "People in your room (passthrough)", isVr: true },
];
const PLAYERS = { heresphere: "HereSphere", deovr: "DeoVR", skybox: "Skybox", "4xvr": "4XVR", moon: "Moon Player" };
const HEADSET_KINDS = new Set(["key", "packed-alpha"]); // what shows people before the room one is in
const WORDS = { waiting: "Waits", running: "Running", done: "Done", failed: "Failed", stopped: "Stopped" };

const isOver = (job) => job.state !== "running" && job.state !== "waiting";

export class Jobs {
  constructor(editor) {
    this.editor = editor; this.jobs = []; this.progress = null; this.isFirstNews = true;
    $("order").addEventListener("submit", (event) => { event.preventDefault(); this.#order(); });
    $("order").addEventListener("change", () => this.#rows());
  }

  // The job of a video that is not over yet.
  of(film, task) { return film && this.jobs.find((job) => job.film_id === film.id && job.order.task === task && !isOver(job)); }

  open(film, pictures) {
    $("kinds").replaceChildren(...KINDS.filter((kind) => !kind.isVr || (film.is_vr && film.eyes > 1)).map((kind, at) => make("label", {},
      make("input", { type: "radio", name: "kind", value: kind.value, checked: film.is_vr && film.eyes > 1 ? kind.isVr : at === 0 }),
      make("span", {}, make("b", {}, kind.label), make("small", {}, kind.about)))));
    $("background").replaceChildren(...(pictures.length ? pictures.map((picture) => make("option", { value: picture.id }, picture.name)) : [make("option", { value: "" }, "No picture in your folder")]));
    $("player").replaceChildren(...Object.entries(PLAYERS).map(([value, label]) => make("option", { value }, label)));
    this.#rows();
    this.stretches();
  }

  stretches() {
    const { editor } = this, [from, to] = editor.shot();
    const chosen = $("stretch").value;
    $("stretch").replaceChildren(make("option", { value: "film" }, `The whole video, ${clock(editor.film.seconds)}`),
      make("option", { value: "shot" }, `This shot, ${clock(from)} to ${clock(to ?? editor.film.seconds)}`),
      make("option", { value: "try" }, `A try: ten seconds from ${clock(editor.seconds)}`));
    $("stretch").value = chosen || "film";
  }

  get kind() { return new FormData($("order")).get("kind"); }

  #rows() {
    $("background-row").hidden = this.kind !== "replace";
    $("player-row").hidden = this.kind !== "packed-alpha";
  }

  async #order() {
    const { editor } = this, stretch = $("stretch").value;
    const [from, to] = stretch === "shot" ? editor.shot() : stretch === "try" ? [editor.seconds, Math.min(editor.seconds + 10, editor.film.seconds)] : [0, null];
    const order = { task: "cut", kind: this.kind, begin_seconds: from ?? 0, end_seconds: to,
      ...(this.kind === "replace" ? { background: $("background").value || null } : {}), ...(this.kind === "packed-alpha" ? { player: $("player").value } : {}) };
    try {
      await editor.corrections.saving;
      await send("POST", `/api/films/${editor.film.id}/jobs`, order);
    } catch (problem) { toast(problem.message); }
  }

  // Take in the news. Say whether a look for people has ended since the last news: a short video's may be over before any news says that it runs.
  told(state) {
    const wasOver = new Set(this.jobs.filter(isOver).map((job) => job.id));
    this.jobs = state.jobs; this.progress = state.progress; this.fetching = state.fetching;
    const active = this.jobs.filter((job) => !isOver(job)).length;
    $("badge").hidden = !active; $("badge").textContent = active;
    this.show();
    const looked = this.jobs.filter((job) => job.order.task === "people" && isOver(job) && !wasOver.has(job.id));
    if (!this.isFirstNews) for (const job of looked) if (job.state === "failed") toast(`${job.film}: ${job.error}`);
    this.isFirstNews = false;
    return looked.length > 0;
  }

  show() {
    const jobs = this.jobs.slice().reverse();
    showing($("jobs"), jobs, () => (jobs.length ? jobs.map((job) => this.#job(job)) : [make("li", { class: "none" }, "None yet.")]));
    const running = this.jobs.find((job) => job.state === "running");
    if (running) this.#progress(running);
  }

  #job(job) {
    const kind = KINDS.find((one) => one.value === job.order.kind);
    const what = { people: "Find people", animate: "Portrait" }[job.order.task] ?? kind?.label ?? job.order.kind;
    const item = make("li", { class: "job" }, make("header", {}, make("b", {}, `${what} · ${job.film}`), make("span", { class: "state" }, job.is_named ? WORDS[job.state] : "Its folder is not open")));
    if (job.state === "running") item.append(this.meter = make("div", { class: "meter", role: "progressbar", "aria-valuemin": 0, "aria-valuemax": 100, "aria-label": "Progress" }, make("i")),
      this.figures = make("div", { class: "figures" }), make("details", {}, make("summary", {}, "Bottleneck"), this.limit = make("p", { class: "why" }), this.loads = make("div", { class: "loads" })));
    if (job.error) item.append(make("p", { class: "error" }, job.error));
    for (const [at, file] of job.made.entries()) {
      const path = `/api/jobs/${job.id}/files/${at}`;
      item.append(make("p", { class: "why" }, file.bytes === null ? `${file.name} no longer exists` : `${file.name}, ${megabytes(file.bytes)}`));
      if (file.bytes !== null) item.append(make("div", { class: "doing" },
        make("button", { class: "quiet", type: "button", "data-does": `play-${job.id}`, onclick: () => this.editor.watching.open(path, file.name) }, "Play"),
        job.order.task === "cut" && HEADSET_KINDS.has(job.order.kind) && make("a", { class: "quiet", href: address("/headset", { of: path }), target: "_blank", rel: "noopener" }, "In a headset"),
        make("a", { class: "quiet", href: `${path}?download=1`, download: file.name }, "Download")));
    }
    if (job.said.length) item.append(make("details", {}, make("summary", {}, "Notes from the run"), ...job.said.map((line) => make("p", { class: "why" }, line))));
    item.append(make("div", { class: "doing" }, make("button", { class: "quiet", type: "button", "data-does": `stop-${job.id}`, onclick: () => send("DELETE", `/api/jobs/${job.id}`).catch((problem) => toast(problem.message)) },
      job.state === "running" ? "Stop" : "Remove from the list")));
    return item;
  }

  #progress(job) {
    const { progress } = this;
    const share = progress?.of_frames ? Math.min(progress.frames / progress.of_frames, 1) : 0;
    this.meter.style.setProperty("--share", `${share * 100}%`);
    this.meter.setAttribute("aria-valuenow", Math.round(share * 100));
    if (!progress) { this.figures.replaceChildren("Opening …"); return; }
    const left = progress.of_frames && progress.frames_per_second > 0 ? (progress.of_frames - progress.frames) / progress.frames_per_second : null;
    this.figures.replaceChildren(...[
      progress.fetching && `Fetching ${progress.fetching}`,
      `${progress.is_scan && job.order.task === "cut" ? "Looking for people: " : ""}${progress.frames}${progress.of_frames ? ` of ${progress.of_frames}` : ""} frames`,
      `${progress.frames_per_second.toFixed(1)} a second`, left !== null && `about ${clock(left)} left`,
    ].filter(Boolean).map((text) => make("span", {}, text)));
    this.limit.textContent = progress.limit ?? "";
    this.loads.replaceChildren(...progress.loads.flatMap(([name, load]) => {
      const bar = make("div", { class: "meter" }, make("i"));
      bar.style.setProperty("--share", `${load * 100}%`);
      return [make("span", {}, name), bar, make("span", {}, `${Math.round(load * 100)} %`)];
    }));
  }
}
