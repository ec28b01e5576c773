// Small parts of pages: elements, radio groups, words for times and sizes.

export const $ = (id) => document.getElementById(id);

export function make(tag, fields = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(fields)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && name !== "role") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// A row of choices of which one holds; arrows move, as in any radio group (WAI-ARIA Authoring Practices).
export function segments(element, choices, chosen, onchoose) {
  const had = element.contains(document.activeElement);
  showing(element, [choices, chosen], () => choices.map(({ value, label, title }) => make("button", {
    type: "button", role: "radio", title, "aria-checked": String(value === chosen), tabIndex: value === chosen ? 0 : -1,
    onclick: () => onchoose(value),
    onkeydown: (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault(); event.stopPropagation();
      const at = choices.findIndex((one) => one.value === value);
      onchoose(choices[(at + step + choices.length) % choices.length].value);
    },
  }, label)));
  if (had) element.querySelector('[aria-checked="true"]')?.focus();
}

// Build an element's content anew only where what it shows has changed: who is about to click on it must not lose it.
const shownBy = new WeakMap();
export function showing(element, state, build) {
  const key = JSON.stringify(state);
  if (shownBy.get(element) === key) return;
  shownBy.set(element, key);
  element.replaceChildren(...build());
}

export function clock(seconds, digits = 0) {
  const scale = 10 ** digits, all = Math.round(Math.max(seconds, 0) * scale) / scale;
  const hours = Math.floor(all / 3600), minutes = Math.floor(all / 60) % 60;
  const rest = (all % 60).toFixed(digits).padStart(digits ? digits + 3 : 2, "0");
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
}

export function megabytes(bytes) { return bytes >= 1e9 ? `${(bytes / 1e9).toFixed(1)} GB` : `${Math.max(bytes / 1e6, 0.1).toFixed(1)} MB`; }

export function toast(text) {
  const shown = make("p", {}, text);
  $("toasts").append(shown);
  setTimeout(() => shown.remove(), 5000);
}

export const PEOPLE_COLORS = ["#4f8df7", "#f2a33a", "#b271e8", "#35b8a6", "#ef6f9d", "#9bb53c"];
export const personColor = (number) => PEOPLE_COLORS[(number - 1) % PEOPLE_COLORS.length];

// What is remembered of this browser, and harmless to lose.
export const memory = {
  get(name, otherwise) { try { return JSON.parse(localStorage.getItem(`vitascope.${name}`)) ?? otherwise; } catch { return otherwise; } },
  set(name, value) { try { localStorage.setItem(`vitascope.${name}`, JSON.stringify(value)); } catch { /* private windows keep nothing */ } },
};
