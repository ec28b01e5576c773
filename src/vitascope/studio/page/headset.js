// The page that shows a result in a headset, over the room one is in; without one, flat, to look around in.

import { HeadsetSession, bestMode } from "./headset_session.js";
import { PeopleView } from "./people_view.js";
import { Playing } from "./playing.js";
import { $, clock, memory, segments } from "./parts.js";

const OF = /^\/api\/(films\/[0-9a-f]+|jobs\/[0-9a-f]+\/files\/\d+)$/; // what may be shown
const BUTTONS = { "immersive-ar": "See them in your room", "immersive-vr": "See them in the headset" };
const WHY_NOT = isSecureContext
  ? "No headset found. Open this page in a headset's browser: by USB with adb reverse, or over HTTPS, which WebXR requires."
  : "This page uses HTTP, over which browsers do not allow WebXR. Start Vitascope with --tls-cert and --tls-key, or open the page by USB with adb reverse.";
const FOVS = [40, 110];

class HeadsetPage {
  constructor() {
    this.look = { yaw: 0, pitch: 0, fov: 80 }; this.eye = "left"; this.mode = null;
    this.video = $("video");
    this.view = new PeopleView($("people"));
    this.playing = new Playing(this.video, (told) => this.#tell(told));
    this.session = new HeadsetSession(this.view, this.video, () => this.#ended());
    this.#wire();
  }

  async open(base) {
    const facts = await this.playing.open(base);
    $("name").textContent = facts.name; document.title = `${facts.name} · Vitascope Studio`;
    this.view.describe(facts);
    this.#eyes();
    this.#draw();
    await this.#headset();
  }

  // A headset may be put on, or a page be allowed to use it, later on.
  async #headset() {
    this.mode = await bestMode();
    $("enter").disabled = !this.mode;
    $("enter").textContent = BUTTONS[this.mode] ?? "No headset";
    $("why").textContent = this.mode ? (this.mode === "immersive-vr" ? "This headset does not let pages show your room; the background is dark." : "") : WHY_NOT;
  }

  async #enter() {
    try {
      await this.session.start(this.mode);
      $("enter").textContent = "Leave the headset";
      this.video.play().catch(() => {});
    } catch (problem) { $("why").textContent = `The headset refuses: ${problem.message}`; await this.session.end(); }
  }

  #ended() { this.seen = null; $("enter").textContent = BUTTONS[this.mode]; this.#draw(); }

  #eyes() {
    $("eyes").hidden = this.view.eyes < 2;
    segments($("eyes"), [{ value: "left", label: "Left eye" }, { value: "right", label: "Right eye" }], this.eye, (eye) => { this.eye = eye; this.#eyes(); });
  }

  // The flat view, as long as no headset shows another one.
  #draw() {
    if (this.session.session || this.isDrawing) return;
    this.isDrawing = true;
    requestAnimationFrame(() => {
      this.isDrawing = false;
      if (this.session.session) return;
      const canvas = $("people"), scale = Math.min(devicePixelRatio, 2);
      const width = Math.round(canvas.clientWidth * scale), height = Math.round(canvas.clientHeight * scale);
      if (canvas.width !== width || canvas.height !== height) { canvas.width = width; canvas.height = height; }
      // What stays as it is is not drawn again: a paused video would keep a fan running.
      const { yaw, pitch, fov } = this.look, seen = [yaw, pitch, fov, this.eye, width, height].join();
      if (this.view.take(this.video) || seen !== this.seen) {
        this.seen = seen;
        this.view.gl.bindFramebuffer(this.view.gl.FRAMEBUFFER, null);
        this.view.clear();
        const { projection, turn } = cameraOf(this.look, width / Math.max(height, 1));
        this.view.draw({ x: 0, y: 0, width, height }, projection, turn, this.eye);
      }
      this.#clock();
      this.#draw();
    });
  }

  #clock() {
    const { video } = this, seconds = video.duration || 0;
    const told = [video.currentTime, seconds, video.paused].join();
    if (told === this.told) return;
    this.told = told;
    $("clock").textContent = `${clock(video.currentTime, 1)} / ${clock(seconds)}`;
    if (Number($("time").max) !== seconds) $("time").max = seconds;
    if (document.activeElement !== $("time") || !video.paused) $("time").value = video.currentTime;
    $("play").closest(".transport").classList.toggle("playing", !video.paused);
    $("play").setAttribute("aria-label", video.paused ? "Play" : "Pause");
  }

  // What keeps the picture away stands before it; that it is a copy's, below it.
  #tell({ text, share, failed }) {
    const isAway = share !== null || Boolean(failed) || (text && !this.video.getAttribute("src"));
    $("copy").textContent = isAway ? "" : text;
    $("note").hidden = !isAway;
    $("note-text").textContent = text;
    $("note-meter").hidden = share === null;
    $("note-meter").style.setProperty("--share", `${(share ?? 0) * 100}%`);
    $("note-meter").setAttribute("aria-valuenow", Math.round((share ?? 0) * 100));
  }

  #toggle() { if (this.video.paused) this.video.play().catch(() => {}); else this.video.pause(); }

  #wire() {
    const canvas = $("people");
    $("play").addEventListener("click", () => this.#toggle());
    $("enter").addEventListener("click", () => (this.session.session ? this.session.end() : this.#enter()));
    $("time").addEventListener("input", () => { this.video.currentTime = Number($("time").value); });
    window.addEventListener("resize", () => { this.seen = null; });
    navigator.xr?.addEventListener("devicechange", () => this.#headset());
    document.addEventListener("keydown", (event) => {
      if (event.key === " " && !event.target.matches("button, input, a")) { event.preventDefault(); this.#toggle(); }
      const step = { ArrowLeft: [-5, 0], ArrowRight: [5, 0], ArrowUp: [0, 5], ArrowDown: [0, -5] }[event.key];
      if (step && event.target === canvas) { event.preventDefault(); this.#turn(...step); }
    });
    canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); this.held = [event.clientX, event.clientY]; });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.held) return;
      const perPixel = this.look.fov / canvas.clientWidth;
      this.#turn((this.held[0] - event.clientX) * perPixel, (event.clientY - this.held[1]) * perPixel);
      this.held = [event.clientX, event.clientY];
    });
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { this.held = null; });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.look.fov = Math.min(Math.max(this.look.fov + event.deltaY * 0.05, FOVS[0]), FOVS[1]);
    }, { passive: false });
  }

  #turn(right, up) {
    this.look.yaw = ((this.look.yaw + right + 540) % 360) - 180;
    this.look.pitch = Math.min(Math.max(this.look.pitch + up, -90), 90);
  }
}

// A camera that looks to a yaw to the right and a pitch up, in degrees, and sees so much across.
export function cameraOf({ yaw, pitch, fov }, aspect) {
  const radians = (degrees) => (degrees * Math.PI) / 180;
  const across = 1 / Math.tan(radians(fov) / 2);
  const [a, b] = [-radians(yaw), radians(pitch)], [ca, sa, cb, sb] = [Math.cos(a), Math.sin(a), Math.cos(b), Math.sin(b)];
  const projection = [across, 0, 0, 0, 0, across * aspect, 0, 0, 0, 0, -1, -1, 0, 0, 0, 0];
  return { projection, turn: [ca, 0, -sa, sa * sb, cb, ca * sb, sa * cb, -sb, ca * cb] };
}

function banner(text) { $("banner").hidden = !text; $("banner").textContent = text ?? ""; }

const theme = memory.get("theme", null);
if (theme) document.documentElement.dataset.theme = theme;
const of = new URLSearchParams(location.search).get("of") ?? "";
if (!OF.test(of)) banner("There is nothing to show. Open a result from the list of jobs in the studio.");
else try { new HeadsetPage().open(of).catch((problem) => banner(problem.message)); } catch (problem) { banner(problem.message); }
