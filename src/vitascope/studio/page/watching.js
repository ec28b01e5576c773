// The dialog in which a result, or the video itself, is played with its sound.

import { Playing } from "./playing.js";
import { $, toast } from "./parts.js";

export class Watching {
  constructor() {
    this.playing = new Playing($("result"), (told) => this.#tell(told));
    $("player-dialog").addEventListener("close", () => this.playing.close());
  }

  open(base, name, seconds = 0) {
    this.name = name;
    this.#tell({ text: "", share: null });
    $("player-dialog").showModal();
    this.playing.open(base, seconds).catch((problem) => { toast(problem.message); $("player-dialog").close(); });
  }

  #tell({ text, share, failed }) {
    $("result-note").textContent = text ? `${this.name}. ${text}` : this.name;
    $("result-note").classList.toggle("error", Boolean(failed));
    $("result").hidden = share !== null;
    $("result-meter").hidden = share === null;
    if (share === null) return;
    $("result-meter").style.setProperty("--share", `${share * 100}%`);
    $("result-meter").setAttribute("aria-valuenow", Math.round(share * 100));
  }
}
