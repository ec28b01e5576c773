// A session in a headset (WebXR): over the room where the headset shows it, otherwise in the dark.

const MODES = ["immersive-ar", "immersive-vr"];
const DARK = 0.05; // behind people where the room is not seen

// The best mode of the headset that is there; null without one.
export async function bestMode() {
  for (const mode of navigator.xr ? MODES : []) {
    try { if (await navigator.xr.isSessionSupported(mode)) return mode; } catch { /* forbidden here: as if there were none */ }
  }
  return null;
}

export class HeadsetSession {
  constructor(view, video, onend) { this.view = view; this.video = video; this.onend = onend; this.yaw = 0; }

  // To be called from a click: browsers ask for one.
  async start(mode) {
    const { view } = this, session = await navigator.xr.requestSession(mode);
    this.session = session;
    session.addEventListener("end", () => { this.session = null; this.onend(); });
    session.addEventListener("select", () => { if (this.video.paused) this.video.play(); else this.video.pause(); });
    session.addEventListener("squeeze", () => { this.recentres = true; });
    await view.gl.makeXRCompatible();
    session.updateRenderState({ baseLayer: new XRWebGLLayer(session, view.gl, { alpha: true, antialias: false, depth: false }) });
    this.space = await session.requestReferenceSpace("local");
    this.recentres = true;
    session.requestAnimationFrame((_, frame) => this.#frame(frame));
  }

  end() { return this.session?.end(); }

  #frame(frame) {
    const { session, view } = this;
    if (!session) return;
    session.requestAnimationFrame((_, next) => this.#frame(next));
    const pose = frame.getViewerPose(this.space);
    if (!pose) return;
    const layer = session.renderState.baseLayer;
    if (this.recentres) { this.recentres = false; this.yaw = yawOf(pose.transform.matrix); }
    view.take(this.video);
    view.gl.bindFramebuffer(view.gl.FRAMEBUFFER, layer.framebuffer);
    if (session.environmentBlendMode === "opaque") view.clear(DARK, 1); else view.clear();
    for (const one of pose.views) view.draw(layer.getViewport(one), one.projectionMatrix, turned(one.transform.matrix, this.yaw), one.eye);
  }
}

// Where somebody looks to, about the vertical; the video's middle goes there.
export function yawOf(matrix) { return Math.atan2(matrix[8], matrix[10]); }

// The rotation of a pose, with its yaw turned back by so much; 3 x 3, in columns.
export function turned(matrix, yaw) {
  const cos = Math.cos(yaw), sin = Math.sin(yaw), made = [];
  for (const column of [0, 4, 8]) {
    const [x, y, z] = [matrix[column], matrix[column + 1], matrix[column + 2]];
    made.push(cos * x - sin * z, y, sin * x + cos * z);
  }
  return made;
}
