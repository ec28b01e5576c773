// Files that are dropped on the page, or chosen, and go into the folder that was opened.

import { address } from "./api.js";
import { $, make, megabytes, toast } from "./parts.js";

export class Uploads {
  // `there(name)` is told of each file that arrived.
  constructor(there) {
    this.there = there; this.waiting = []; this.isSending = false;
    $("add").addEventListener("change", () => { this.add($("add").files); $("add").value = ""; });
    document.addEventListener("dragover", (event) => { if (event.dataTransfer?.types.includes("Files")) { event.preventDefault(); document.body.classList.add("drops"); } });
    document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("drops"); });
    document.addEventListener("drop", (event) => {
      document.body.classList.remove("drops");
      if (!event.dataTransfer?.files.length) return;
      event.preventDefault();
      this.add(event.dataTransfer.files);
    });
  }

  async add(files) {
    for (const file of files) {
      const meter = make("div", { class: "meter", role: "progressbar", "aria-label": file.name, "aria-valuemin": 0, "aria-valuemax": 100 }, make("i"));
      const words = make("span", {}, `${file.name}, ${megabytes(file.size)}`);
      const item = make("li", {}, words, meter, make("button", { class: "quiet", type: "button", onclick: () => this.#drop(item) }, "Stop"));
      $("uploads").append(item);
      this.waiting.push({ file, item, meter });
    }
    if (this.isSending) return;
    this.isSending = true;
    for (let next = this.waiting.shift(); next; next = this.waiting.shift()) await this.#send(next);
    this.isSending = false;
  }

  #drop(item) {
    this.waiting = this.waiting.filter((one) => one.item !== item);
    if (this.sending?.item === item) this.sending.request.abort();
    item.remove();
  }

  // By XMLHttpRequest, which says how far it is.
  #send({ file, item, meter }) {
    return new Promise((resolve) => {
      const request = new XMLHttpRequest();
      this.sending = { item, request };
      const failed = (why) => { toast(why.startsWith(`${file.name}: `) ? why : `${file.name}: ${why}`); };
      request.upload.onprogress = ({ loaded, total }) => { meter.style.setProperty("--share", `${(loaded / Math.max(total, 1)) * 100}%`); meter.setAttribute("aria-valuenow", Math.round((loaded / Math.max(total, 1)) * 100)); };
      request.onload = () => {
        let told = {};
        try { told = JSON.parse(request.responseText); } catch { /* not ours */ }
        if (request.status === 201) this.there(told.name);
        else failed(told.error ?? `the server answered ${request.status}`);
      };
      request.onerror = () => failed("the connection was lost; add it again");
      request.onloadend = () => { item.remove(); this.sending = null; resolve(); };
      request.open("POST", address("/api/films", { name: file.name }));
      request.setRequestHeader("Content-Type", "application/octet-stream");
      request.send(file);
    });
  }
}
