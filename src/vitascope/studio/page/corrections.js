// The corrections of a video as one document, of which each change is saved at once; undo and redo keep earlier documents.
// It is what film.hints.yaml holds: people, marks, never, edges. Documents are never changed, only replaced: they share
// what they have in common, and so does what was saved.

import { get, send, Unreachable } from "./api.js";

const WINDOW = Math.random().toString(36).slice(2);
const MOST_UNDO = 500;
const MOST_KEPT = 10e6; // places in the lists of earlier documents
const LISTS = ["people", "marks", "never"];
const RETRY_MS = 3000;

export class Corrections {
  // `changed()` after each change of the document; `told({saved, problem})` as it is saved or is not.
  constructor(film, changed, told) {
    this.film = film; this.changed = changed; this.told = told;
    this.document = {}; this.written = {}; this.revision = null; this.error = null;
    this.past = []; this.future = []; this.saving = null; this.isDirty = false;
    this.problem = null; // why the last save failed
    this.unanswered = null; // the document that was sent without an answer: the file holds it, or does not
    this.retry = null;
  }

  get path() { return `/api/films/${this.film.id}/corrections`; }
  get isLocked() { return this.error !== null || this.revision === null; }
  get isUnsaved() { return Boolean(this.saving) || this.problem !== null; }

  // The film is opened: with what its file holds, or with what could not be saved of it yet.
  async open(film) {
    this.film = film;
    if (!this.isUnsaved) return this.read();
    this.changed();
    if (this.problem) this.told({ saved: false, problem: this.problem });
    if (this.problem instanceof Unreachable) this.again();
  }

  async read() {
    await this.saving;
    this.take(await (await get(this.path)).json());
    this.past = []; this.future = [];
    this.changed();
  }

  take({ revision, hints, error }) {
    this.revision = revision; this.error = error; this.isDirty = false; this.problem = this.unanswered = null;
    clearTimeout(this.retry);
    if (hints) this.document = this.written = hints;
  }

  // Change the document by a pure function.
  change(next) {
    if (this.isLocked) return;
    const changed = next(this.document);
    if (changed === this.document) return;
    this.past.push(this.document);
    while (this.past.length > Math.min(MOST_UNDO, MOST_KEPT / ((changed.marks?.length ?? 0) + 1))) this.past.shift();
    this.future = [];
    this.#put(changed);
  }

  undo() { if (this.past.length && !this.isLocked) { this.future.push(this.document); this.#put(this.past.pop()); } }
  redo() { if (this.future.length && !this.isLocked) { this.past.push(this.document); this.#put(this.future.pop()); } }

  // A change that goes on, as of a slider that is held: the last one counts as one step.
  changeOn(next) {
    if (this.isLocked) return;
    if (!this.held) { this.held = true; this.past.push(this.document); this.future = []; }
    this.#put(next(this.document));
  }

  letGo() { this.held = false; }

  #put(document) {
    this.document = document;
    this.isDirty = true;
    try { this.changed(); } finally { // what fails to show it does not lose it
      this.saving ??= this.#save().finally(() => { this.saving = null; });
    }
  }

  // Only one save is on its way at a time; what changed meanwhile is saved after it.
  async #save() {
    clearTimeout(this.retry);
    while (this.isDirty) {
      // What was sent without an answer is sent again as it was, before what changed since.
      const document = this.unanswered ?? this.document;
      this.isDirty = document !== this.document;
      try { await this.#send(document); } catch (problem) { this.#failed(problem); return; }
    }
    this.problem = null;
    this.changed();
    this.told({ saved: true });
  }

  async #send(document) {
    const changes = difference(this.written, document), isAgain = this.unanswered !== null;
    this.unanswered = document;
    try {
      if (changes) this.revision = (await (await send("PATCH", this.path, { changes, revision: this.revision, window: WINDOW })).json()).revision;
    } catch (problem) {
      const found = isAgain && problem.code === "CorrectionsClashError" ? await (await get(this.path)).json() : null;
      if (!found?.hints || difference(found.hints, document)) throw problem;
      this.revision = found.revision; // it had been written, and its answer alone was lost
    }
    this.written = document;
    this.unanswered = null;
  }

  #failed(problem) {
    this.problem = problem; this.isDirty = false;
    if (problem instanceof Unreachable) { clearTimeout(this.retry); this.retry = setTimeout(() => this.again(), RETRY_MS); } else this.unanswered = null;
    this.told({ saved: false, problem });
  }

  // Another window wrote: the last writer is told, and chooses.
  async isNews({ revision, window }) {
    if (window === WINDOW || revision === this.revision) return false;
    await this.saving;
    return revision !== this.revision;
  }

  // After a time without the server: save what could not be saved. True where the file is another one by now.
  async catchUp() {
    if (this.revision === null) { await this.read(); return false; }
    if (!this.isUnsaved) return (await (await get(this.path)).json()).revision !== this.revision;
    this.#put(this.document);
    return false;
  }

  // Try to save once more what could not be saved.
  again() { if (this.problem && !this.saving) this.#put(this.document); }

  // Write over what the other window wrote.
  async insist() {
    try {
      const { revision, hints, error } = await (await get(this.path)).json();
      if (error) throw new Error(error);
      this.revision = revision; this.written = hints; this.unanswered = null;
    } catch (problem) { this.#failed(problem); return; }
    this.#put(this.document);
  }
}

// Whether two values say the same, in whatever order their fields stand.
function alike(one, other) {
  if (one === other) return true;
  if (!one || !other || typeof one !== "object" || typeof other !== "object" || Array.isArray(one) !== Array.isArray(other)) return false;
  const names = Object.keys(one);
  return names.length === Object.keys(other).length && names.every((name) => name in other && alike(one[name], other[name]));
}

// What makes one document another, as PATCH takes it; null where nothing does.
export function difference(before, after) {
  const splices = [];
  for (const section of LISTS) {
    const old = before[section] ?? [], now = after[section] ?? [], shorter = Math.min(old.length, now.length);
    if (old === now) continue;
    let at = 0, last = 0;
    while (at < shorter && alike(old[at], now[at])) at += 1;
    while (last < shorter - at && alike(old[old.length - 1 - last], now[now.length - 1 - last])) last += 1;
    const remove = old.length - last - at, insert = now.slice(at, now.length - last);
    if (remove || insert.length) splices.push({ section, at, remove, insert });
  }
  const edges = alike(before.edges ?? {}, after.edges ?? {}) ? {} : { edges: after.edges ?? {} };
  return splices.length || edges.edges ? { splices, ...edges } : null;
}

// ---- People: who is kept at a time, as segmentation/people/choice.py has it.
// Whom the words, clicks and boxes of hints mean the server says: `meant` is {words: {pov: [1]}, pointed: [{mark, person}]}.

const acts = (rule, seconds) => (rule.from ?? 0) <= seconds && seconds < (rule.to ?? Infinity);
const numbers = (named, meant) => (named === undefined ? [] : [named].flat().flatMap((one) => meant?.words?.[one] ?? one));

// What the server said of a mark, looked up once for each: documents share their marks, and are asked at each change.
const answers = new WeakMap();
function answerOn(mark, meant) {
  if (!meant?.pointed?.length) return undefined;
  if (!answers.has(meant)) answers.set(meant, new WeakMap());
  const known = answers.get(meant);
  if (!known.has(mark)) known.set(mark, meant.pointed.find((one) => alike(one.mark, mark)));
  return known.get(mark);
}

// Who a click or a box of the document means; undefined where that is not known, or nobody.
export const markedPerson = (mark, meant) => (mark.stroke ? undefined : answerOn(mark, meant)?.person || undefined);

// Whether the document has a click or a box of which it is not known whom it means.
export const hasUnknownMarks = (document, meant) => (document.marks ?? []).some((mark) => !mark.stroke && !answerOn(mark, meant));

// Clicks and boxes by what they say of people: they count after all rules.
function pointedRules(marks, meant) {
  const found = [];
  for (const mark of marks) {
    const person = markedPerson(mark, meant);
    if (person) found.push({ [mark.do === "remove" ? "exclude" : "keep"]: [person], ...(mark.from ? { from: mark.from } : {}), ...(mark.to === undefined ? {} : { to: mark.to }) });
  }
  return found;
}

const rulesOf = (document, meant) => [...(document.people ?? []), ...pointedRules(document.marks ?? [], meant)];

// The document with rules in place of the clicks and boxes that say something of a person meanwhile, or of anybody:
// so a rule can be added after them. The others stay: they find who is meant, whatever the numbers are by then.
function withRules(document, meant, begin, end, person = null) {
  const isOne = (mark) => {
    const one = markedPerson(mark, meant);
    return Boolean(one) && (person === null || one === person) && (mark.from ?? 0) < end && (mark.to ?? Infinity) > begin;
  };
  const marks = document.marks ?? [], pointed = pointedRules(marks.filter(isOne), meant);
  if (!pointed.length) return document;
  return { ...document, people: [...(document.people ?? []), ...pointed], marks: marks.filter((mark) => !isOne(mark)) };
}

export function isKept(document, person, seconds, meant) {
  return keptBy(rulesOf(document, meant).filter((rule) => acts(rule, seconds)), person, meant);
}

function keptBy(acting, person, meant) {
  let kept = !acting.some((rule) => rule.keep !== undefined);
  for (const rule of acting) {
    if (numbers(rule.keep, meant).includes(person)) kept = true;
    if (numbers(rule.exclude, meant).includes(person)) kept = false;
  }
  return kept;
}

// Whether somebody is kept from a time to another: "kept", "gone", or "part" where that changes meanwhile.
export function keptWhile(document, person, from, to, meant) {
  const parts = partsOf(document, person, from, to, meant);
  return parts.length > 1 ? "part" : parts[0].isKept ? "kept" : "gone";
}

// The parts of a time in which somebody is kept, and is not, in turn; a moment, as of one frame, is a part itself.
function partsOf(document, person, from, to, meant) {
  const begin = from ?? 0, end = to ?? Infinity;
  if (end <= begin) return [{ begin, end, isKept: isKept(document, person, begin, meant) }];
  // Rules come and go in the order of time: each is looked at twice, however many there are.
  const rules = rulesOf(document, meant).filter((rule) => (rule.from ?? 0) < end && (rule.to ?? Infinity) > begin && (rule.keep !== undefined || numbers(rule.exclude, meant).includes(person)));
  const coming = rules.map((rule, place) => ({ rule, place })).sort((one, other) => (one.rule.from ?? 0) - (other.rule.from ?? 0));
  const times = [...new Set([begin, ...rules.flatMap((rule) => [rule.from ?? 0, rule.to ?? Infinity])])].filter((time) => begin <= time && time < end).sort((one, other) => one - other);
  let acting = [], at = 0;
  const parts = [];
  for (const time of times) {
    acting = acting.filter(({ rule }) => (rule.to ?? Infinity) > time);
    for (; at < coming.length && (coming[at].rule.from ?? 0) <= time; at += 1) if ((coming[at].rule.to ?? Infinity) > time) acting.push(coming[at]);
    acting.sort((one, other) => one.place - other.place);
    const isKept = keptBy(acting.map(({ rule }) => rule), person, meant), last = parts.at(-1);
    if (last?.isKept === isKept) continue;
    if (last) last.end = time;
    parts.push({ begin: time, end, isKept });
  }
  return parts;
}

// The document with a person kept or left out from a time to another; null is the video's beginning or end.
export function withPerson(document, person, keeps, from, to, meant) {
  const begin = from ?? 0, end = to ?? Infinity, ruled = withRules(document, meant, begin, end, person);
  const people = [];
  for (const rule of ruled.people ?? []) {
    const ruleBegin = rule.from ?? 0, ruleEnd = rule.to ?? Infinity, excluded = numbers(rule.exclude, meant);
    if (!excluded.includes(person) || ruleEnd <= begin || ruleBegin >= end) { people.push(rule); continue; }
    // The part before, the part without this person, and the part after.
    if (ruleBegin < begin) people.push(...timed(rule, ruleBegin, begin));
    const left = excluded.filter((one) => one !== person);
    if (left.length) people.push(...timed({ ...rule, exclude: left }, Math.max(ruleBegin, begin), Math.min(ruleEnd, end)));
    if (ruleEnd > end) people.push(...timed(rule, end, ruleEnd));
  }
  const changed = { ...ruled, people };
  const others = partsOf(changed, person, from, to, meant).filter(({ isKept }) => isKept !== keeps);
  // A rule that keeps somebody leaves out all others: it is added only while another one does so anyway.
  if (keeps) for (const part of others) people.push(...timed({ keep: [person] }, part.begin, part.end));
  else if (others.length) people.push(...timed({ exclude: [person] }, begin, end));
  return changed;
}

// The document with everybody kept from a time to another: no rule acts meanwhile.
export function withAll(document, from, to, meant) {
  const begin = from ?? 0, end = to ?? Infinity, ruled = withRules(document, meant, begin, end);
  const people = (ruled.people ?? []).flatMap((rule) => {
    const ruleBegin = rule.from ?? 0, ruleEnd = rule.to ?? Infinity;
    if (ruleEnd <= begin || ruleBegin >= end) return [rule];
    return [...(ruleBegin < begin ? timed(rule, ruleBegin, begin) : []), ...(ruleEnd > end ? timed(rule, end, ruleEnd) : [])];
  });
  return { ...ruled, people };
}

// The document with one of the people kept, and all the others left out, from a time to another.
export function withOnly(document, person, people, from, to, meant) {
  const changed = withAll(document, from, to, meant), others = people.filter((one) => one !== person);
  return others.length ? { ...changed, people: [...changed.people, ...timed({ exclude: others }, from ?? 0, to ?? Infinity)] } : changed;
}

// The rule for a time, as a list; none where nothing of the time is left once it is written.
function timed(rule, begin, end) {
  const { from, to, ...rest } = rule, first = round(begin), last = Number.isFinite(end) ? round(end) : end;
  return first < last ? [{ ...rest, ...(first > 0 ? { from: first } : {}), ...(last < Infinity ? { to: last } : {}) }] : [];
}

// ---- Strokes

const round = (value, digits = 4) => Number(value.toFixed(digits));

const inPicture = (point) => point.map((one) => round(Math.min(Math.max(one, 0), 1)));

export function withStroke(document, { at, stroke, radius, remove, eye }) {
  const mark = { at: round(at), stroke: stroke.map(inPicture), radius: round(radius), do: remove ? "remove" : "keep", ...(eye === "both" ? {} : { eye }) };
  return { ...document, marks: [...(document.marks ?? []), mark] };
}

// A region that is never kept, by its corners.
export function withRegion(document, polygon, eye) {
  const region = { polygon: polygon.map(inPicture), ...(eye === "both" ? {} : { eye }) };
  return { ...document, never: [...(document.never ?? []), region] };
}

// Without one hint, of those that are like it the first.
export function without(document, name, hint) {
  const at = document[name].findIndex((one) => alike(one, hint));
  return { ...document, [name]: document[name].filter((_, place) => place !== at) };
}

// ---- Edges

export function withEdge(document, name, value) {
  const edges = { ...document.edges };
  if (value === undefined) delete edges[name]; else edges[name] = value;
  const { edges: _, ...rest } = document;
  return Object.keys(edges).length ? { ...rest, edges } : rest;
}
