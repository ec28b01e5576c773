"""A browser at a studio, driven as its user would."""

from __future__ import annotations

import time

import numpy as np

from headless_browser import Page


class StudioPage(Page):
    """A browser at a studio."""

    def until(self, expression, seconds=60):
        """What an expression gives, once that is true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := self.value(expression):
                return found
            time.sleep(0.05)
        raise AssertionError(f"{expression}\n{self.value('document.body.innerText')}\n{self.complaints()}")

    def text(self, selector):
        return self.value(f"document.querySelector({selector!r})?.innerText ?? ''")

    def click(self, selector, x=0.5, y=0.5):
        self.drag(selector, [(x, y)])

    def drag(self, selector, points):
        """Press the mouse at a place of an element, as shares of its size, move, and let go."""
        self.until(f"document.querySelector({selector!r}) !== null")
        box = self.value(
            f"(() => {{ const e = document.querySelector({selector!r}); e.scrollIntoView({{block: 'nearest'}}); "
            "const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })()"
        )
        places = [(box[0] + x * box[2], box[1] + y * box[3]) for x, y in points]
        mouse = {"button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=places[0][0], y=places[0][1])
        self.call("Input.dispatchMouseEvent", type="mousePressed", x=places[0][0], y=places[0][1], **mouse)
        for x, y in places[1:]:
            self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y, button="left", buttons=1)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=places[-1][0], y=places[-1][1], **mouse)

    def press(self, key, shift=False):
        fields = {"key": key, "modifiers": 8 if shift else 0}
        if len(key) == 1:
            fields["text"] = key
        self.call("Input.dispatchKeyEvent", type="keyDown", **fields)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def color(self, x, y):
        """RGB of the picture at a place, as shares of its size."""
        return self.value(
            "(() => { const image = document.querySelector('#shown'); const c = document.createElement('canvas'); "
            "c.width = image.naturalWidth; c.height = image.naturalHeight; const p = c.getContext('2d'); "
            f"p.drawImage(image, 0, 0); return [...p.getImageData(Math.floor({x} * c.width), "
            f"Math.floor({y} * c.height), 1, 1).data].slice(0, 3); }})()"
        )

    def until_color(self, x, y, rgb, seconds=60):
        end = time.monotonic() + seconds
        found = None
        while time.monotonic() < end:
            if self.value("document.querySelector('#shown').naturalWidth > 0"):
                found = self.color(x, y)
                if np.abs(np.array(found) - rgb).max() < 60:
                    return
            time.sleep(0.05)
        raise AssertionError(
            f"{found}, not {rgb}; {self.value('document.body.innerText')}; {self.complaints()}"
        )


def faults(page):
    """What the console says, but for answers that the page tells its user itself."""
    return [line for line in page.complaints() if "the server responded with a status of" not in line]
