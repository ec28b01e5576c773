// A video that plays: the file itself where this browser can, otherwise a small copy that the server makes once.

import { get, send, Unreachable } from "./api.js";

const ASK_AGAIN_MS = 500;
const LOST = "The connection to Vitascope is lost; this continues by itself.";

export class Playing {
  // `tell({ text, share, failed })` says what is going on: text is empty while the file itself plays; share is 0 to 1
  // while a copy is made, otherwise null.
  constructor(video, tell) {
    this.video = video; this.tell = tell; this.turn = 0;
    video.addEventListener("error", () => { if (video.getAttribute("src")) this.#failed(); });
    // Where a browser knows the sound and not the picture it plays the sound, and says nothing.
    video.addEventListener("loadedmetadata", () => { if (!video.videoWidth) this.#failed(); });
  }

  // Play what lies at an address of the interface; gives what the server knows of it.
  async open(base, seconds = 0) {
    const turn = ++this.turn;
    this.base = base; this.seconds = seconds; this.isCopy = false;
    this.tell({ text: "", share: null });
    const facts = await (await get(`${base}/playing`)).json();
    if (turn !== this.turn) return facts;
    this.facts = facts;
    if (facts.why_not) this.#copy(facts.why_not);
    else this.#show(facts.original);
    return facts;
  }

  close() {
    this.turn += 1;
    this.video.removeAttribute("src");
    this.video.load();
  }

  #show(address) {
    this.video.src = address;
    this.video.currentTime = this.seconds;
    this.video.play().catch(() => { /* the error event says why; or the user has to press play */ });
  }

  #failed() {
    this.seconds = this.video.currentTime || this.seconds;
    if (this.video.error?.code === MediaError.MEDIA_ERR_NETWORK) { this.#wait(this.video.getAttribute("src")); return; }
    if (this.isCopy) { this.tell({ text: "This browser cannot play it, nor a copy in H.264. Download it instead.", share: null, failed: true }); return; }
    this.#copy("this browser cannot play it");
  }

  // The server has gone: play on once it is there again.
  async #wait(address) {
    const turn = this.turn;
    this.tell({ text: LOST, share: null });
    for (let isThere = false; !isThere;) {
      await new Promise((resolve) => { setTimeout(resolve, 4 * ASK_AGAIN_MS); });
      try { await get(`${this.base}/playing`); isThere = true; } catch { /* not yet */ }
      if (turn !== this.turn) return;
    }
    this.tell({ text: "", share: null });
    this.#show(address);
  }

  async #copy(why) {
    const turn = this.turn;
    this.isCopy = true;
    this.video.removeAttribute("src");
    for (;;) {
      let copy = null;
      try { copy = await (await send("POST", `${this.base}/proxy`)).json(); } catch (problem) {
        if (!(problem instanceof Unreachable) && problem.status !== 503) { this.tell({ text: problem.message, share: null, failed: true }); return; }
      }
      if (turn !== this.turn) return;
      if (copy?.state === "failed") { this.tell({ text: copy.error, share: null, failed: true }); return; }
      if (copy?.state === "done") break;
      this.tell({ text: copy === null ? LOST : `A copy that plays is being made, once: ${why}.`, share: copy?.share ?? 0 });
      await new Promise((resolve) => { setTimeout(resolve, ASK_AGAIN_MS); });
      if (turn !== this.turn) return;
    }
    this.#show(`${this.base}/proxy`);
    this.tell({ text: `A smaller copy is shown: ${why}.`, share: null });
  }
}
