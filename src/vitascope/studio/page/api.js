// What the server is asked for, and its news; a lost connection is told, and made again.

export class Refused extends Error {
  constructor(status, code, message) { super(message); this.status = status; this.code = code; }
}

// Nobody answered, or not to the end: of that alone fetch, and reading what it gives, tell by a TypeError.
export class Unreachable extends Error {
  constructor(cause) { super("Vitascope cannot be reached.", { cause }); }
}

async function reached(answering) {
  try { return await answering; } catch (problem) { throw problem instanceof TypeError ? new Unreachable(problem) : problem; }
}

async function answered(response) {
  if (response.ok) return { headers: response.headers, json: () => reached(response.json()), blob: () => reached(response.blob()) };
  let told = { error: `the server answered ${response.status}` };
  try { told = await response.json(); } catch { /* no answer of the studio's own */ }
  if (response.status === 401) told.error = "This page is from an earlier start. Open the address in the terminal.";
  throw new Refused(response.status, told.code, told.error);
}

export async function get(path, query = {}, signal = undefined) {
  return answered(await reached(fetch(address(path, query), { signal })));
}

export async function send(method, path, body = undefined) {
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  return answered(await reached(fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) })));
}

export function address(path, query) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value !== undefined && value !== null && value !== "") words.set(name, value);
  return words.size ? `${path}?${words}` : path;
}

// News by WebSocket: `told(message)` for each; `linked(state)` as the connection comes and goes: "there", "lost", or "refused"
// where a server answers that does not know this browser any more.
export function listen(told, linked) {
  let wait = 500;
  const open = () => {
    const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/api/news`);
    socket.onopen = () => { wait = 500; linked("there"); };
    socket.onmessage = (event) => told(JSON.parse(event.data));
    socket.onclose = async () => {
      // A WebSocket does not tell why it was not opened.
      let status = 0;
      try { status = (await fetch("/api/studio", { signal: AbortSignal.timeout(5000) })).status; } catch { /* nobody is there */ }
      linked(status === 401 ? "refused" : "lost");
      setTimeout(open, wait);
      wait = Math.min(wait * 1.7, 8000);
    };
  };
  open();
}
