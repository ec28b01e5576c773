// The brush and its strokes, and the sliders of the edges.

import { withEdge, without, withRegion, withStroke } from "./corrections.js";
import { $, clock, make, memory, segments, showing } from "./parts.js";
import { boxOf } from "./stage.js";

const LEAST_BOX = 0.01; // smaller ones are clicks that slipped
const MOST_LISTED = 300; // strokes; a longer list nobody reads
const SHARE = 1000; // of the radius slider: thousandths of the picture's width

// A straight edge of a look is bent in the eye: some points on each.
const EDGE_POINTS = 6;
const edgesOf = (corners) => corners.flatMap(([x, y], at) => {
  const [nextX, nextY] = corners[(at + 1) % corners.length];
  return Array.from({ length: EDGE_POINTS }, (_, n) => [x + ((nextX - x) * n) / EDGE_POINTS, y + ((nextY - y) * n) / EDGE_POINTS]);
});

export class Brush {
  constructor(editor) {
    this.editor = editor; this.kind = "keep";
    $("radius").addEventListener("input", () => this.size(Number($("radius").value)));
    this.size(memory.get("radius", 30));
    this.choose("keep");
  }

  choose(kind) {
    this.kind = kind;
    this.editor.stage.removes = kind === "remove";
    this.editor.stage.isBox = kind === "never";
    this.editor.stage.setMode(this.editor.stage.mode);
    $("radius").closest("label").hidden = kind === "never";
    $("touch-lead").textContent = kind === "never" ? "Draw a box around what is never a person: a chair, a poster. It stays where it is, through the whole video."
      : "Paint over what should stay or go. The stroke follows the motion, forwards and backwards, until the next cut.";
    segments($("brushes"), [{ value: "keep", label: "Keep" }, { value: "remove", label: "Take away" }, { value: "never", label: "Never here" }], kind, (value) => this.choose(value));
  }

  size(value) {
    const size = Math.min(Math.max(value, 4), 120);
    $("radius").value = size;
    $("radius-out").textContent = `${(size / SHARE * 200).toFixed(1)} % of the picture`;
    memory.set("radius", size);
    this.editor.stage.radius = size / SHARE;
    this.editor.stage.draw();
  }

  step(by) { this.size(Number($("radius").value) * (by > 0 ? 1.25 : 0.8)); }

  async paint(stroke) {
    const { editor } = this, at = editor.frameSeconds, eye = editor.eyeOfStroke, remove = this.kind === "remove";
    if (this.kind === "never") {
      const [begin, end] = [stroke[0], stroke.at(-1)];
      if (!begin.every((one, axis) => Math.abs(end[axis] - one) > LEAST_BOX)) return;
      const corners = boxOf(begin, end);
      const { points } = await editor.inEye(editor.look ? edgesOf(corners) : corners);
      if (points.length > 2) editor.corrections.change((doc) => withRegion(doc, points, eye));
      return;
    }
    if (!editor.people.hasLooked) {
      editor.stage.note("To follow strokes, Vitascope searches the video once.", editor.people.button());
      return;
    }
    const { points, radius } = await editor.inEye(stroke, editor.stage.radius);
    if (points.length) editor.corrections.change((doc) => withStroke(doc, { at, stroke: points, radius, remove, eye }));
  }

  get here() {
    const { editor } = this, half = 0.6 / editor.film.frames_per_second;
    return (editor.corrections.document.marks ?? []).filter((mark) => mark.stroke && Math.abs(mark.at - editor.frameSeconds) < half);
  }

  show() {
    const { editor } = this;
    const painted = editor.corrections.document.marks ?? [];
    if (this.painted !== painted) { this.painted = painted; this.sorted = painted.slice().sort((one, other) => one.at - other.at); }
    const marks = this.sorted;
    const boxes = editor.corrections.document.never ?? [];
    showing($("boxes"), boxes, () => boxes.map((box) => make("li", {}, make("span", { class: "go" }, make("span", { class: "dot never" }), "Never kept: a box"),
      make("button", { class: "icon", type: "button", "aria-label": "Remove this box", onclick: () => editor.corrections.change((doc) => without(doc, "never", box)) }, "✕"))));
    editor.stage.boxes = boxes;
    const listed = marks.slice(0, MOST_LISTED), others = marks.length - listed.length;
    showing($("strokes"), [listed, others], () => (marks.length ? [...listed.map((mark) => make("li", {},
      make("button", { class: "go", type: "button", onclick: () => editor.seek(mark.at) }, make("span", { class: `dot ${mark.do === "remove" ? "remove" : ""}` }),
        `${mark.do === "remove" ? "Taken away" : "Kept"} at ${clock(mark.at, 1)}`, mark.stroke ? "" : ` (${mark.click ? "click" : "box"})`),
      make("button", { class: "icon", type: "button", "aria-label": `Remove the stroke at ${clock(mark.at, 1)}`, onclick: () => editor.corrections.change((doc) => without(doc, "marks", mark)) }, "✕"))), others > 0 && make("li", { class: "none" }, `${others} more, later in the video.`)].filter(Boolean) : [make("li", { class: "none" }, "None yet.")]));
    editor.stage.draw(this.here);
  }
}

const SLIDERS = [
  { name: "grow_px", label: "Grow or shrink", min: -12, max: 12, step: 0.5, unit: "px", about: "Moves the outline out, or in if there is a rim of background." },
  { name: "feather_px", label: "Soften", min: 0, max: 12, step: 0.5, unit: "px", about: "For an outline that looks cut with scissors." },
  { name: "low", label: "Clear the background", min: 0, max: 0.45, step: 0.01, about: "Takes away a faint veil." },
  { name: "high", label: "Fill the people", min: 0.55, max: 1, step: 0.01, about: "Closes holes in people.", isTurned: true },
  { name: "temporal_smoothing", label: "Steady over time", min: 0, max: 0.95, step: 0.05, about: "Calms a flickering outline. Only visible in the finished video." },
];

export class Edges {
  constructor(editor) {
    this.editor = editor;
    this.inputs = new Map();
    $("edge-sliders").replaceChildren(...SLIDERS.map((slider) => {
      const output = make("output", {});
      const input = make("input", { type: "range", min: slider.min, max: slider.max, step: slider.step, "aria-label": slider.label,
        oninput: () => this.#set(slider, Number(input.value)), onchange: () => editor.corrections.letGo() });
      this.inputs.set(slider.name, [slider, input, output]);
      return make("label", { class: "slider" }, make("span", {}, slider.label), output, input, make("small", {}, slider.about));
    }), make("label", { class: "switch" },
      this.clean = make("input", { type: "checkbox", onchange: () => editor.corrections.change((doc) => withEdge(doc, "decontaminate", this.clean.checked ? undefined : false)) }),
      make("span", {}, "Clean the colours of the outline", make("small", {}, "Takes the old background's colour out of hair and soft edges."))));
    $("edges-reset").addEventListener("click", () => editor.corrections.change(({ edges, ...rest }) => rest));
  }

  static levels(edges) { return edges?.threshold ?? [0, 1]; }

  #set(slider, value) {
    const { corrections } = this.editor;
    corrections.changeOn((doc) => {
      if (slider.name !== "low" && slider.name !== "high") return withEdge(doc, slider.name, value || undefined);
      const [low, high] = Edges.levels(doc.edges);
      const levels = slider.name === "low" ? [value, high] : [low, slider.min + slider.max - value];
      return withEdge(doc, "threshold", levels[0] === 0 && levels[1] === 1 ? undefined : levels.map((level) => Number(level.toFixed(3))));
    });
  }

  show() {
    const { edges = {} } = this.editor.corrections.document;
    const [low, high] = Edges.levels(edges);
    for (const [name, [slider, input, output]] of this.inputs) {
      const value = name === "low" ? low : name === "high" ? slider.min + slider.max - high : edges[name] ?? 0;
      if (document.activeElement !== input || Number(input.value) !== value) input.value = value;
      output.textContent = slider.unit ? `${value > 0 ? "+" : ""}${value} ${slider.unit}` : `${Math.round((name === "high" ? value - slider.min : value) * 100)} %`;
      input.disabled = this.editor.corrections.isLocked;
    }
    this.clean.checked = edges.decontaminate ?? true;
    $("edges-reset").disabled = !Object.keys(edges).length;
  }
}
