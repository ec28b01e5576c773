// The page: which video is open, where one is in it, keys, news, and who is told of what.

import { Portraits } from "./animating.js";
import { get, listen, send, Unreachable } from "./api.js";
import { Corrections, hasUnknownMarks } from "./corrections.js";
import { Jobs } from "./cutting.js";
import { $, clock, make, memory, segments, toast } from "./parts.js";
import { People } from "./people.js";
import { Stage, thumbnail } from "./stage.js";
import { Timeline } from "./timeline.js";
import { Brush, Edges } from "./touchup.js";
import { Uploads } from "./uploads.js";
import { Watching } from "./watching.js";

const VIEWS = [
  { value: "source", label: "Source" }, { value: "mask", label: "Matte" }, { value: "key", label: "Green screen" },
  { value: "overlay", label: "Tint" }, { value: "blur", label: "Blur" }, { value: "replace", label: "Background" },
];
const TABS = ["people", "touch", "edges", "cut"];
const FASTEST = 8;
const TWICE_MS = 500, TWICE_PX = 8; // between the two clicks of a double click

class Editor {
  constructor() {
    this.film = null; this.seconds = 0; this.frameSeconds = 0; this.cuts = []; this.pictures = [];
    this.view = memory.get("view", "key"); this.beside = ""; this.eye = "left"; this.look = null; this.tab = "people"; this.rate = 0;
    this.ways = 0;
    this.unsaved = new Map(); // corrections by film, of films that were left before all was saved
    this.#leave();
    this.stage = new Stage(() => this.#asked(), { onpaint: (stroke) => this.brush.paint(stroke).catch((problem) => toast(problem.message)), onpick: (point) => this.people.pick(point).catch((problem) => toast(problem.message)), onlook: (look) => { this.look = look; this.stage.refresh(); }, onshown: (shown) => this.#shown(shown) });
    this.timeline = new Timeline((seconds) => { this.pause(); this.seek(seconds); });
    this.watching = new Watching();
    this.people = new People(this); this.brush = new Brush(this); this.edges = new Edges(this); this.jobs = new Jobs(this); this.portraits = new Portraits();
    this.#wire();
  }

  get background() { return this.pictures[0] && ($("background").value || this.pictures[0].id); }
  get eyeOfStroke() { return this.film.eyes > 1 ? this.eye : "both"; }
  get last() { return Math.max(this.film.seconds - 1 / this.film.frames_per_second, 0); }

  #asked() {
    const { film } = this;
    if (!film || this.corrections.film !== film || this.corrections.revision === null) return null;
    return { film: { id: film.id, version: film.version, eyes: film.eyes }, revision: this.corrections.revision, seconds: this.seconds, view: this.view, beside: this.beside || null, eye: this.eye, look: this.look, background: [this.view, this.beside].includes("replace") ? this.background : null };
  }

  // The shot around a time: from the cut before it to the cut after it; null for the video's end.
  shot(seconds = this.seconds) {
    const before = this.cuts.filter((cut) => cut <= seconds + 1e-3), after = this.cuts.find((cut) => cut > seconds + 1e-3);
    return [before.at(-1) ?? 0, after ?? null];
  }

  get hasUnsaved() { return [this.corrections, ...this.unsaved.values()].some((one) => one.isUnsaved); }

  // Begins a way to another view; the function tells whether nobody has gone elsewhere meanwhile.
  #wants() { const way = ++this.ways; return () => way === this.ways; }

  // What is not saved yet of the film that was open goes on being saved.
  #leave() {
    if (this.corrections?.isUnsaved) this.unsaved.set(this.corrections.film.id, this.corrections);
    if (this.film) banner(null);
    this.film = null; this.isSaveFault = false;
    this.corrections = new Corrections({ id: "" }, () => {}, () => {});
  }

  #correctionsOf(film) {
    const made = new Corrections(film, () => { if (made === this.corrections) this.#corrected(); }, (news) => this.#saved(made, news));
    const kept = this.unsaved.get(film.id);
    this.unsaved.delete(film.id);
    return kept ?? made;
  }

  async open(id) {
    this.pause();
    const isWanted = this.#wants();
    let film;
    try { film = await (await get(`/api/films/${id}`)).json(); } catch (problem) { if (!isWanted()) return; toast(problem.message); return this.list(); }
    if (!isWanted()) return;
    film.seconds ||= 1 / film.frames_per_second; // a picture, or a video that does not say how long it is
    this.#leave();
    this.film = film; this.cuts = []; this.look = null; this.eye = "left"; this.seconds = this.frameSeconds = 0; this.people.forget();
    history.replaceState(null, "", `/?film=${film.id}`);
    document.title = `${film.name} · Vitascope Studio`;
    titled(film.name, "All videos"); $("help-file").textContent = film.hints;
    this.portraits.close();
    $("library").hidden = $("animate").hidden = true; $("editor").hidden = false; document.body.classList.remove("lists"); $("saved").textContent = "";
    banner(null);
    this.corrections = this.#correctionsOf(film);
    this.#faultsOfOthers();
    this.stage.shape(film, false);
    this.timeline.open(film);
    this.jobs.open(film, this.pictures);
    this.#choices(); this.goTo(this.tab); this.moved();
    await this.corrections.open(film);
    this.#faults();
    this.people.read().then(() => this.#marks()).catch((problem) => toast(problem.message));
    this.readCuts().catch((problem) => toast(problem.message));
  }

  // Shows the library, or, as a refresh, what is new in it if it is still shown then.
  async list({ isRefresh = false } = {}) {
    this.pause();
    const isWanted = isRefresh ? () => !$("library").hidden : this.#wants();
    let all, named;
    try {
      const [listed, studio] = await Promise.all([get("/api/films"), get("/api/studio")]);
      all = await listed.json(); ({ named } = await studio.json());
    } catch (problem) { if (isWanted()) toast(problem.message); return; }
    if (!isWanted()) return;
    const { films, pictures } = all;
    this.#leave(); this.#faultsOfOthers();
    history.replaceState(null, "", "/");
    document.title = "Vitascope Studio";
    this.pictures = pictures;
    this.portraits.close();
    $("modes").hidden = !pictures.length;
    segments($("modes"), [{ value: "cut", label: "Cut out people" }, { value: "animate", label: "Animate a portrait" }], "cut", (mode) => mode === "animate" && this.animate(all));
    $("editor").hidden = $("animate").hidden = true; $("library").hidden = false; document.body.classList.add("lists"); titled("Your videos", "Studio"); $("saved").textContent = "";
    $("library-lead").textContent = films.length ? "Choose a video to look at its matte, correct it and cut out its people." : `No video was found in ${named}. Add one, or start vitascope studio with the folder that holds your videos.`;
    const waiting = [];
    $("films").replaceChildren(...films.map((film) => {
      const words = make("small", {}, film.corrected ? "has corrections" : " ");
      const poster = make("span", { class: "poster" });
      const card = make("button", { class: "card", type: "button", onclick: () => this.open(film.id) }, poster, make("span", { class: "words" }, make("b", {}, film.name), words));
      waiting.push([film, card, poster, words]);
      return make("li", {}, card);
    }));
    // Two at a time, as long as the list is looked at: a video is opened for each.
    const describe = async () => { for (let next = waiting.shift(); next && !this.film; next = waiting.shift()) await this.#describe(...next); };
    describe(); describe();
  }

  animate(listed) {
    this.pause();
    this.#wants();
    this.#leave();
    document.title = "Animate · Vitascope Studio";
    $("library").hidden = $("editor").hidden = true; $("animate").hidden = false; document.body.classList.add("lists");
    titled("Animate a portrait", "All videos"); $("saved").textContent = "";
    this.portraits.open(listed);
  }

  async #describe(film, card, poster, words) {
    try {
      const facts = await (await get(`/api/films/${film.id}`)).json();
      poster.append(make("img", { alt: "", loading: "lazy", src: thumbnail(facts, facts.seconds * 0.3).replace("side=160", "side=480") }));
      words.textContent = [clock(facts.seconds), `${facts.width} × ${facts.height}`, facts.is_vr ? (facts.eyes > 1 ? "VR, both eyes" : "VR") : facts.eyes > 1 ? "3D" : null, film.corrected ? "has corrections" : null].filter(Boolean).join(" · ");
    } catch (problem) { card.classList.add("broken"); card.disabled = film.isBroken = true; words.textContent = problem.message.split(`${film.name}: `).at(-1); }
  }

  async readCuts() {
    const { film } = this;
    if (!film) return;
    const found = await (await get(`/api/films/${film.id}/cuts`)).json();
    if (film !== this.film) return;
    this.cuts = found.cuts;
    this.#marks(); this.people.show(); this.jobs.stretches();
  }

  // The server is there again, perhaps another one than before.
  async again() {
    if (!$("library").hidden) return this.list({ isRefresh: true });
    if (!this.film) return;
    if (await this.corrections.catchUp()) this.#clash();
    this.stage.shownKey = null; this.stage.refresh();
    await Promise.all([this.people.read(), this.readCuts()]);
    this.#marks();
  }

  seek(seconds) {
    this.seconds = Math.min(Math.max(seconds, 0), this.last);
    this.moved();
    return this.stage.refresh();
  }

  moved() {
    $("clock").replaceChildren(clock(this.seconds, 2), make("small", {}, ` / ${clock(this.film.seconds)}`));
    this.timeline.at(this.seconds);
    if (this.people.hasLooked === null) return;
    this.people.show();
    const shot = JSON.stringify([this.film.id, this.shot()]);
    if (shot !== this.lastShot) { this.lastShot = shot; this.jobs.stretches(); }
  }

  step(frames) { this.pause(); return this.seek(this.frameSeconds + frames / this.film.frames_per_second); }

  cut(way) {
    this.pause();
    const stops = [0, ...this.cuts, this.last];
    const next = way > 0 ? stops.find((stop) => stop > this.seconds + 0.02) : stops.filter((stop) => stop < this.seconds - 0.02).at(-1);
    if (next !== undefined) this.seek(next + 1e-4);
  }

  // Plays in the video's time, by as many pictures as can be made.
  async play(rate = 1) {
    const isNew = this.rate === 0;
    this.rate = rate;
    $("play").closest(".transport").classList.add("playing"); $("play").setAttribute("aria-label", "Pause");
    if (!isNew) return;
    if (this.seconds >= this.last - 0.01 && rate > 0) this.seconds = 0;
    let before = performance.now(), pictures = 0;
    const began = before;
    while (this.rate !== 0) {
      await this.stage.refresh();
      await new Promise((resolve) => { setTimeout(resolve, 8); });
      const now = performance.now();
      pictures += 1;
      $("pace").textContent = `${(pictures / ((now - began) / 1000)).toFixed(1)} pictures a second`;
      this.seconds = Math.min(Math.max(this.seconds + ((now - before) / 1000) * this.rate, 0), this.last);
      before = now;
      this.moved();
      if (this.seconds === this.last || (this.seconds === 0 && this.rate < 0)) this.pause();
    }
    this.stage.refresh();
  }

  pause() {
    this.rate = 0;
    $("pace").textContent = "";
    $("play").closest(".transport").classList.remove("playing"); $("play").setAttribute("aria-label", "Play");
  }

  goTo(tab) {
    this.tab = tab;
    for (const name of TABS) {
      $(name).hidden = name !== tab;
      $(`tab-${name}`).setAttribute("aria-selected", String(name === tab)); $(`tab-${name}`).tabIndex = name === tab ? 0 : -1;
    }
    this.#mode();
    if (this.film) { this.brush.show(); if (tab === "people" || tab === "cut") { this.people.show(); this.jobs.stretches(); } }
  }

  #mode() { this.stage.setMode({ touch: "paints", people: "picks" }[this.tab] ?? (this.look ? "looks" : "rests")); if (this.film) this.brush.show(); }

  // Where points of what is shown lie in the eye's own picture, and how large a radius is there.
  async inEye(points, radius = 0) {
    if (!this.look) return { points, radius };
    const inside = points.map((point) => point.map((one) => Math.min(Math.max(one, 0), 1)));
    const [x, y] = inside[0], step = x > 0.5 ? -radius : radius;
    const found = await (await send("POST", `/api/films/${this.film.id}/places`, { ...this.look, eye: this.eye, points: [[x, y], [x + step, y], ...inside] })).json();
    const [begin, aside, ...places] = found.points;
    if (!begin || !aside) return { points: [], radius }; // begun where the eye sees nothing
    return { points: places.filter(Boolean), radius: radius && Math.min(Math.max(Math.hypot(aside[0] - begin[0], (aside[1] - begin[1]) * this.film.height / this.film.width), 0.001), 0.5) };
  }

  #lookAround(on) {
    this.look = on ? { yaw: 0, pitch: 0, fov: 90 } : null;
    this.stage.shape(this.film, on);
    this.#choices(); this.#mode(); this.stage.refresh();
  }

  show(view) {
    this.view = view; memory.set("view", view);
    this.#choices(); this.stage.refresh();
  }

  #choices() {
    const views = VIEWS.filter(({ value }) => value !== "replace" || this.pictures.length);
    if (!views.some(({ value }) => value === this.view)) this.view = "key";
    segments($("views"), views.map((view, at) => ({ ...view, title: `Key ${at + 1}` })), this.view, (view) => this.show(view));
    $("beside-view").replaceChildren(make("option", { value: "" }, "Nothing"), ...views.filter(({ value }) => value !== this.view).map(({ value, label }) => make("option", { value }, label)));
    if (this.beside === this.view) this.beside = "";
    $("beside-view").value = this.beside;
    const label = (value) => VIEWS.find((view) => view.value === value)?.label ?? "";
    for (const [id, text] of [["tag-left", label(this.view)], ["tag-right", label(this.beside)]]) { $(id).textContent = text; $(id).hidden = !this.beside; }
    $("shown").alt = `The frame: ${label(this.view)}`;
    $("eyes").hidden = !(this.film?.eyes > 1);
    segments($("eyes"), [{ value: "left", label: "Left" }, { value: "right", label: "Right" }], this.eye, (eye) => { this.eye = eye; this.#choices(); this.stage.refresh(); });
    $("look").hidden = !this.film?.looks_around; $("look").setAttribute("aria-pressed", String(Boolean(this.look)));
  }

  #shown({ seconds, problem }) {
    if (problem) return this.#failed(problem);
    this.frameSeconds = seconds;
    if (this.tab === "touch") this.brush.show();
  }

  #failed(problem) {
    this.pause();
    if (problem.code === "FilmChangedError") { banner("The video was changed on the disk.", ["Open it again", () => this.open(this.film.id)]); return; }
    if (problem instanceof Unreachable || problem.status === 503) return; // the connection's own banner tells
    const needsPeople = /nobody looked/i.test(problem.message);
    this.stage.note(needsPeople ? "These corrections need the people in the video." : problem.message, ...(needsPeople ? [this.people.button()] : []));
  }

  #corrected() {
    const { corrections } = this;
    $("undo").disabled = !corrections.past.length; $("redo").disabled = !corrections.future.length;
    this.#marks(); this.people.show(); this.brush.show(); this.edges.show();
    if (!corrections.isDirty) this.stage.refresh();
  }

  #marks() { this.timeline.mark(this.cuts, this.corrections.document, this.people.people, this.people.meant); }

  #saved(corrections, { saved, problem }) {
    const { film } = corrections;
    if (corrections !== this.corrections) {
      if (saved) { this.unsaved.delete(film.id); toast(`Saved in ${film.hints}`); } else this.#faultsOfOthers();
      return;
    }
    const isUnreachable = problem instanceof Unreachable;
    $("saved").classList.toggle("bad", !saved);
    $("saved").textContent = saved ? `Saved in ${film.hints}` : isUnreachable ? "Not saved yet" : "Not saved";
    if (isUnreachable) return; // the connection's own banner tells
    if (saved) {
      if (this.isSaveFault) banner(null);
      this.isSaveFault = false;
      // Undone: clicks and boxes that were rules when it was asked whom they mean.
      if (this.people.hasLooked && hasUnknownMarks(corrections.document, this.people.meant)) this.people.read().then(() => this.#marks()).catch((fault) => toast(fault.message));
      return;
    }
    if (problem.code === "CorrectionsClashError") { this.#clash(); return; }
    this.isSaveFault = true;
    banner(`Not saved: ${problem.message}`, ["Try again", () => { banner(null); corrections.insist(); }]);
  }

  // Of a film that was left something cannot be saved, and not for want of a connection: there the user chooses.
  #faultsOfOthers() {
    for (const { film, problem } of this.unsaved.values()) {
      if (problem && !(problem instanceof Unreachable)) banner(`Changes of ${film.name} are not saved: ${problem.message}`, ["Open it", () => this.open(film.id)]);
    }
  }

  #clash() {
    banner(`${this.film.hints} was changed in another window or by hand.`,
      ["Take that", () => this.#readCorrections().catch((problem) => toast(problem.message))],
      ["Keep mine", () => { banner(null); this.corrections.insist(); }]);
  }

  // What changed by hand may name people by words or clicks: whom these mean is asked anew.
  async #readCorrections() {
    banner(null);
    await this.corrections.read();
    $("saved").textContent = "";
    this.#faults();
    await this.people.read();
    this.#marks();
  }

  // A file that was edited by hand may have an error: its line and the reason.
  #faults() {
    if (this.corrections.error) banner(`${this.corrections.error}. Mend it in an editor; until then nothing is written over it.`, ["Read it again", () => this.#readCorrections().catch((problem) => toast(problem.message))]);
  }

  async news(message) {
    if (message.news === "jobs") {
      if (message.version !== document.querySelector("[name=vitascope-version]").content) banner("Vitascope has been updated.", ["Reload the page", () => location.reload()]);
      const hasLooked = this.jobs.told(message);
      if (message.problem) banner(message.problem);
      if (this.film) {
        this.people.show();
        if (hasLooked) { await this.people.read(); this.#marks(); this.stage.shownKey = null; this.stage.note(null); this.stage.refresh(); }
      }
      if (message.fetching && this.film) this.stage.note(`Fetching the network ${message.fetching} …`);
    } else if (message.film === this.film?.id) {
      if (message.news === "cuts") this.readCuts().catch(() => {});
      if (message.news === "corrections" && await this.corrections.isNews(message)) this.#clash();
    }
  }

  #wire() {
    $("to-library").addEventListener("click", () => this.list());
    $("undo").addEventListener("click", () => this.corrections.undo());
    $("redo").addEventListener("click", () => this.corrections.redo());
    $("play").addEventListener("click", () => (this.rate ? this.pause() : this.play()));
    $("previous-cut").addEventListener("click", () => this.cut(-1));
    $("next-cut").addEventListener("click", () => this.cut(1));
    $("beside-view").addEventListener("change", () => { this.beside = $("beside-view").value; this.#choices(); this.stage.refresh(); });
    $("background").addEventListener("change", () => this.stage.refresh());
    $("look").addEventListener("click", () => this.#lookAround(!this.look));
    $("watch").addEventListener("click", () => { this.pause(); this.watching.open(`/api/films/${this.film.id}`, this.film.name, this.seconds); });
    $("help").addEventListener("click", () => $("help-dialog").showModal());
    $("theme").addEventListener("click", () => theme(isDark() ? "light" : "dark"));
    for (const name of TABS) $(`tab-${name}`).addEventListener("click", () => this.goTo(name));
    document.querySelector(".tabs").addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault(); event.stopPropagation();
      this.goTo(TABS[(TABS.indexOf(this.tab) + step + TABS.length) % TABS.length]);
      $(`tab-${this.tab}`).focus();
    });
    document.addEventListener("keydown", (event) => this.#key(event));
  }

  #key(event) {
    const isTyping = event.target.matches("input:not([type=radio]):not([type=checkbox]), select, textarea, video") || document.querySelector("dialog[open]");
    if (!this.film || isTyping || event.altKey) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (key === "z") { event.shiftKey ? this.corrections.redo() : this.corrections.undo(); event.preventDefault(); return; }
    if (event.ctrlKey || event.metaKey) return;
    const onButton = event.target.matches("button, [role=radio], a, summary, input");
    const actions = {
      " ": onButton ? null : () => (this.rate ? this.pause() : this.play()),
      k: () => this.pause(), l: () => this.play(this.rate > 0 ? Math.min(this.rate * 2, FASTEST) : 1), j: () => this.play(this.rate < 0 ? Math.max(this.rate * 2, -FASTEST) : -1),
      ArrowLeft: () => (event.shiftKey ? this.seek(this.seconds - 1) : this.step(-1)), ArrowRight: () => (event.shiftKey ? this.seek(this.seconds + 1) : this.step(1)),
      ArrowUp: () => this.cut(-1), ArrowDown: () => this.cut(1), Home: () => this.seek(0), End: () => this.seek(this.last),
      "[": () => this.brush.step(-1), "]": () => this.brush.step(1), "?": () => $("help-dialog").showModal(),
    };
    const views = [...$("views").children];
    const action = actions[key] ?? (/^[1-9]$/.test(key) && views[Number(key) - 1] ? () => views[Number(key) - 1].click() : null);
    if (action) { event.preventDefault(); action(); }
  }
}

// What is open, and where the button beside it leads.
function titled(name, back) {
  $("film-name").textContent = name;
  document.querySelector("#to-library span").textContent = back;
  $("to-library").classList.toggle("back", back !== "Studio");
}

function banner(text, ...actions) {
  $("banner").hidden = !text;
  $("banner").replaceChildren(...(text ? [make("p", {}, text), ...actions.map(([label, onclick]) => make("button", { type: "button", onclick }, label))] : []));
}

const isDark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
function theme(name) { if (name) document.documentElement.dataset.theme = name; memory.set("theme", name); }

theme(memory.get("theme", null));
const editor = new Editor();
let link = "there";
const LINKS = {
  lost: "The connection to Vitascope is lost. The page reconnects by itself, and keeps your changes until then.",
  refused: "Vitascope was restarted and no longer knows this browser. Open the address in the terminal.",
};
listen((message) => editor.news(message), (state) => {
  if (state === link) return;
  const was = link;
  link = state;
  $("link").hidden = state === "there"; $("link").textContent = LINKS[state] ?? "";
  if (state === "there" && was !== "there") { toast("Connected again."); editor.again().catch((problem) => toast(problem.message)); }
});
// The second click of a double click would order once more what the first began, or stop it where that has its place by now.
let begun = null;
addEventListener("click", (event) => {
  if (begun && event.timeStamp - begun.timeStamp < TWICE_MS && Math.hypot(event.clientX - begun.clientX, event.clientY - begun.clientY) < TWICE_PX) {
    event.preventDefault(); event.stopPropagation();
    return;
  }
  begun = event.detail && event.target.closest("button.primary") ? event : null;
}, true);
addEventListener("beforeunload", (event) => { if (editor.hasUnsaved) event.preventDefault(); }); // the browser asks
new Uploads((name) => { toast(`${name} is in your folder.`); if (!$("library").hidden) editor.list({ isRefresh: true }); });
const id = new URLSearchParams(location.search).get("film");
get("/api/films").then((listed) => listed.json()).then((listed) => {
  const { films, pictures } = listed;
  editor.pictures = pictures;
  const only = films.length === 1 && !pictures.length ? films[0].id : null;
  return id || only ? editor.open(id ?? only) : editor.list();
}).catch((problem) => banner(problem.message));
