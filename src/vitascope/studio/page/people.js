// The strip of the people who were found, each kept or left out: in the whole video or from a cut to a cut.

import { get, send } from "./api.js";
import { hasUnknownMarks, keptWhile, markedPerson, withAll, withOnly, without, withPerson } from "./corrections.js";
import { $, clock, make, personColor, segments, showing, toast } from "./parts.js";

export class People {
  constructor(editor) { this.editor = editor; this.scope = "film"; this.asked = this.answered = 0; this.forget(); }

  forget() { this.people = []; this.hasLooked = null; this.meant = null; }

  async read() {
    const { film, corrections } = this.editor, { revision } = corrections, asked = ++this.asked;
    const found = await (await get(`/api/films/${film.id}/people`)).json();
    if (film !== this.editor.film || asked < this.answered) return;
    this.answered = asked;
    this.people = found.people; this.hasLooked = found.looked; this.remarks = found.notes;
    this.meant = { words: found.words, pointed: found.pointed };
    this.show();
    // The corrections that were asked about are others by now.
    if (revision !== corrections.revision && hasUnknownMarks(corrections.document, this.meant)) await this.read();
  }

  // From when to when a choice holds.
  get times() { return this.scope === "film" ? [null, null] : this.editor.shot(); }

  async find() {
    const { film } = this.editor;
    try { await send("POST", `/api/films/${film.id}/jobs`, { task: "people" }); this.editor.stage.note(null); } catch (problem) { toast(problem.message); }
  }

  button(label = "Find the people") { return make("button", { class: "primary", type: "button", onclick: () => this.find() }, label); }

  show() {
    const { editor } = this, { corrections, film } = editor;
    this.#search();
    const [from, to] = editor.shot();
    $("people-scope").hidden = !this.people.length;
    segments($("people-scope"), [
      { value: "film", label: "Whole video" },
      { value: "shot", label: `This shot, ${clock(from)} to ${clock(to ?? film.seconds)}` },
    ], this.scope, (value) => { this.scope = value; this.show(); });

    const [begin, end] = this.times;
    const cards = this.people.map((person) => ({
      person,
      state: keptWhile(corrections.document, person.number, begin, end, this.meant),
      isHere: person.seen.some((seen) => seen.begin_seconds <= editor.seconds + 0.1 && editor.seconds <= seen.end_seconds + 0.1),
    }));
    const focused = document.activeElement?.dataset?.person;
    showing($("people-list"), [film.id, film.version, corrections.isLocked, cards], () => cards.map((card) => make("li", {}, this.#card(card), cards.length > 1 && this.#only(card))));
    const isAnybodyOut = cards.length > 1 && cards.some(({ state }) => state !== "kept");
    showing($("people-all"), [isAnybodyOut, corrections.isLocked], () => (isAnybodyOut ? [make("button", { class: "quiet", type: "button", disabled: corrections.isLocked, onclick: () => this.keepAll() }, "Keep everyone")] : []));
    if (focused) document.querySelector(`[data-person="${focused}"]`)?.focus();
    const byHand = (corrections.document.people ?? []).filter((rule) => rule.keep !== undefined || [rule.exclude].flat().some((one) => typeof one === "string"));
    const pointed = (corrections.document.marks ?? []).filter((mark) => !mark.stroke).map((mark) => ({ mark, person: markedPerson(mark, this.meant) }));
    showing($("people-notes"), [this.remarks, byHand, pointed], () => [
      ...(this.remarks ?? []).map((note) => make("li", {}, note)),
      ...byHand.map((rule) => make("li", {}, `${rule.keep === undefined ? "Without" : "Only"} ${[rule.keep ?? rule.exclude].flat().join(", ")}${rule.from || rule.to ? ` from ${clock(rule.from ?? 0)} to ${clock(rule.to ?? film.seconds)}` : ""} `,
        make("button", { type: "button", onclick: () => corrections.change((doc) => without(doc, "people", rule)) }, "Remove this rule"))),
      ...pointed.map(({ mark, person }) => make("li", {}, `${mark.do === "remove" ? "Without" : "Only"} ${person ? `person ${person}` : "who is"} under a ${mark.click ? "click" : "box"} at ${clock(mark.at)}${mark.from || mark.to ? `, from ${clock(mark.from ?? 0)} to ${clock(mark.to ?? film.seconds)}` : ""} `,
        make("button", { type: "button", onclick: () => corrections.change((doc) => without(doc, "marks", mark)) }, "Remove this mark"))),
    ]);
  }

  // Looked, looking, or to be asked for.
  #search() {
    const { editor } = this, job = editor.jobs?.of(editor.film, "people");
    const progress = job?.state === "running" ? editor.jobs.progress : null;
    const share = progress?.of_frames ? Math.min(progress.frames / progress.of_frames, 1) : 0;
    showing($("people-empty"), [editor.film.id, job?.id, job?.state, this.hasLooked, this.people.length], () => {
      if (job) {
        return [this.doing = make("span"), this.meter = make("div", { class: "meter" }, make("i")),
          make("button", { class: "quiet", type: "button", onclick: () => send("DELETE", `/api/jobs/${job.id}`).catch((problem) => toast(problem.message)) }, "Stop")];
      }
      if (this.hasLooked === false) return [make("span", {}, "Vitascope searches the video once. Then you can keep or leave out each person."), this.button()];
      return this.hasLooked && !this.people.length ? [make("span", {}, "Nobody was found in this video.")] : [];
    });
    if (job) {
      this.doing.textContent = job.state === "waiting" ? "Waiting …" : `Looking who is in the video … ${Math.round(share * 100)} %`;
      this.meter.style.setProperty("--share", `${share * 100}%`);
    }
  }

  #card({ person, state, isHere }) {
    const { editor } = this;
    const card = make("button", {
      type: "button", role: "switch", class: `person${isHere ? "" : " away"}`, "aria-checked": String(state === "kept"),
      "data-person": String(person.number), disabled: editor.corrections.isLocked, onclick: () => this.toggle(person.number),
    },
    make("img", { src: `/api/films/${editor.film.id}/people/${person.number}.png`, alt: "" }),
    make("span", { class: "who" }, make("b", {}, `Person ${person.number}`), make("small", {}, isHere ? "in view" : `first at ${clock(person.seen[0].begin_seconds)}`)),
    make("span", { class: "state" }, { kept: "Kept", gone: "Left out", part: "In part" }[state]));
    card.style.setProperty("--person", personColor(person.number));
    return card;
  }

  #only({ person }) {
    const { corrections } = this.editor;
    return make("button", {
      class: "chip", type: "button", title: "Keep this person alone", "aria-label": `Keep only person ${person.number}`, disabled: corrections.isLocked,
      onclick: () => { const numbers = this.people.map((one) => one.number), [from, to] = this.times; corrections.change((doc) => withOnly(doc, person.number, numbers, from, to, this.meant)); },
    }, "Only");
  }

  keepAll() {
    const [from, to] = this.times;
    this.editor.corrections.change((doc) => withAll(doc, from, to, this.meant));
  }

  toggle(number) {
    const { corrections } = this.editor, [from, to] = this.times;
    const keeps = keptWhile(corrections.document, number, from, to, this.meant) !== "kept";
    corrections.change((doc) => withPerson(doc, number, keeps, from, to, this.meant));
  }

  // A click in the picture is for who is under it.
  async pick(point) {
    const { editor } = this;
    if (!this.hasLooked) { editor.stage.note("To choose people, Vitascope searches the video once.", this.button()); return; }
    const [[x, y] = []] = (await editor.inEye([point])).points;
    if (x === undefined) { toast("There is nobody there."); return; }
    const { person } = await (await get(`/api/films/${editor.film.id}/people/at`, { t: editor.seconds.toFixed(4), x: Math.min(Math.max(x, 0), 1).toFixed(4), y: Math.min(Math.max(y, 0), 1).toFixed(4), eye: editor.eye })).json();
    if (person) this.toggle(person); else toast("There is nobody there.");
  }
}
