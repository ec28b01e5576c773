// People of a video before whatever is behind the page or the headset: one eye's view, drawn by WebGL.
//
// Directions are as in vitascope/vr/projection.py: x to the right, y down, z straight ahead. The fragment shader goes from
// a place of the view to its direction, from there to a place of the eye's picture, and reads colour and alpha there.
// Packed alpha (vitascope/vr/packing.py): an eye's matte is a fisheye picture of the same lens in a tile, clipped to its
// circle. The left eye's tile has its centre in the middle of the upper border, the right eye's in the upper left corner,
// and what leaves the picture on one side comes in on the other. Alpha is R - max(G, B), or grey.

const VERTEX = `#version 300 es
void main() {
  vec2 corner = vec2(gl_VertexID == 1 ? 3.0 : -1.0, gl_VertexID == 2 ? 3.0 : -1.0); // one triangle that covers all
  gl_Position = vec4(corner, 0.0, 1.0);
}`;

const FRAGMENT = `#version 300 es
precision highp float;
precision highp int;
const int FISHEYE = 0, EQUIRECTANGULAR = 1, FLAT = 2;
const int WHOLE = 0, PACKED_RED = 1, PACKED_GREY = 2, KEY = 3;
uniform sampler2D picture;
uniform vec4 viewport;     // x, y, width, height in pixels of the canvas
uniform vec4 camera;       // of the projection matrix: how much a tangent is scaled (x, y) and moved (x, y)
uniform mat3 turn;         // from the camera's axes to the world's, both as WebGL has them: y up, z backwards
uniform int lens, kind;
uniform vec2 fov;          // across and down, in radians
uniform vec4 circle;       // of a fisheye: centre and radius, as shares of the eye's picture
uniform vec4 eye;          // the eye's share of the picture: left, top, width, height
uniform int side;          // of packed eyes, in samples
uniform ivec2 tile;        // width and height of a matte's tile
uniform int eyeNumber;     // 0 left, 1 right
uniform vec3 key;
out vec4 color;

float alphaOf(vec3 rgb) {
  return kind == PACKED_GREY ? min(rgb.r, min(rgb.g, rgb.b)) : clamp(rgb.r - max(rgb.g, rgb.b), 0.0, 1.0);
}

float tileSample(ivec2 at) {
  at = clamp(at, ivec2(0), tile - 1);
  vec2 fromCentre = (vec2(at) + 0.5) / vec2(tile) * 2.0 - 1.0;
  if (length(fromCentre) > 1.0) return 0.0;
  ivec2 centre = ivec2(eyeNumber == 0 ? side : 0, 0), size = ivec2(2 * side, side);
  ivec2 place = (at - tile / 2 + centre + size) % size;
  // A smaller copy of the video is read at the same share of its size.
  return alphaOf(textureLod(picture, (vec2(place) + 0.5) / vec2(size), 0.0).rgb);
}

float packedAlpha(vec2 share) {
  vec2 at = share * vec2(tile) - 0.5;
  ivec2 first = ivec2(floor(at));
  vec2 part = at - floor(at);
  float above = mix(tileSample(first), tileSample(first + ivec2(1, 0)), part.x);
  float below = mix(tileSample(first + ivec2(0, 1)), tileSample(first + ivec2(1, 1)), part.x);
  return mix(above, below, part.y);
}

vec2 chroma(vec3 rgb) { // BT.709
  float luma = dot(rgb, vec3(0.2126, 0.7152, 0.0722));
  return vec2((rgb.b - luma) / 1.8556, (rgb.r - luma) / 1.5748);
}

bool find(vec3 ray, out vec2 place, out vec2 around) {
  if (lens == FISHEYE) {
    float across = length(ray.xy), far = atan(across, ray.z) / (fov.x / 2.0);
    around = ray.xy * (far / max(across, 1e-9));
    place = circle.xy + around * circle.zw;
    return far <= 1.0;
  }
  if (lens == EQUIRECTANGULAR) place = vec2(atan(ray.x, ray.z), atan(ray.y, length(ray.xz))) / fov + 0.5;
  else place = (ray.xy / max(ray.z, 1e-9) / tan(fov / 2.0) + 1.0) / 2.0;
  return (lens != FLAT || ray.z > 0.0) && all(greaterThanEqual(place, vec2(0.0))) && all(lessThanEqual(place, vec2(1.0)));
}

void main() {
  vec2 ndc = (gl_FragCoord.xy - viewport.xy) / viewport.zw * 2.0 - 1.0;
  vec3 ray = normalize(turn * vec3((ndc + camera.zw) / camera.xy, -1.0)) * vec3(1.0, -1.0, -1.0);
  vec2 place, around;
  if (!find(ray, place, around)) { color = vec4(0.0); return; }
  vec2 half_ = 0.5 / vec2(textureSize(picture, 0)); // nothing of the other eye comes in at the border
  vec3 rgb = textureLod(picture, clamp(eye.xy + place * eye.zw, eye.xy + half_, eye.xy + eye.zw - half_), 0.0).rgb;
  float alpha = 1.0;
  if (kind == PACKED_RED || kind == PACKED_GREY) alpha = packedAlpha(around * 0.5 + 0.5);
  if (kind == KEY) {
    alpha = smoothstep(0.06, 0.2, distance(chroma(rgb), chroma(key)));
    rgb = clamp((rgb - (1.0 - alpha) * key) / max(alpha, 0.01), 0.0, 1.0);
  }
  color = vec4(rgb * alpha, alpha);
}`;

const LENSES = { fisheye: 0, equirectangular: 1, flat: 2 };
const KINDS = { whole: 0, red: 1, grey: 2, key: 3 };
const DISC_SCALE = 0.4; // a matte's diameter over an eye's side
const LOOKED_AT = 64; // samples of a tile by which its colour is told
const TOLD_BY = 1; // a sum of alpha that is no noise
const LEAST_STEP = 1 / 65; // seconds between two pictures: more often none comes, and each is copied
const radians = (degrees) => (degrees * Math.PI) / 180;

// Width and height of a tile, for eyes of so many samples.
export const tileSize = (side) => { const exact = Math.floor(side * DISC_SCALE); return [exact & ~3, exact & ~1]; };

export class PeopleView {
  constructor(canvas) {
    this.gl = canvas.getContext("webgl2", { alpha: true, antialias: false, depth: false, xrCompatible: true });
    if (!this.gl) throw new Error("This browser has no WebGL 2, which draws the people.");
    const { gl } = this;
    this.program = program(gl);
    this.at = Object.fromEntries(["picture", "viewport", "camera", "turn", "lens", "kind", "fov", "circle", "eye", "side", "tile", "eyeNumber", "key"].map((name) => [name, gl.getUniformLocation(this.program, name)]));
    this.texture = gl.createTexture();
    gl.bindTexture(gl.TEXTURE_2D, this.texture);
    for (const name of [gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER]) gl.texParameteri(gl.TEXTURE_2D, name, gl.LINEAR);
    for (const name of [gl.TEXTURE_WRAP_S, gl.TEXTURE_WRAP_T]) gl.texParameteri(gl.TEXTURE_2D, name, gl.CLAMP_TO_EDGE);
    gl.bindVertexArray(gl.createVertexArray());
    this.facts = null;
  }

  // What the server knows of the video: layout, lenses, and what stands behind people.
  describe(facts) {
    this.facts = facts; this.shownAt = null; this.hasPicture = false;
    this.kind = facts.is_packed_alpha ? "red" : facts.key_color ? "key" : "whole";
    this.isTold = !facts.is_packed_alpha;
  }

  get eyes() { return this.facts?.lenses.length ?? 1; }

  // Take over the video's picture, where it is another one than before.
  take(video) {
    if (!this.facts || video.readyState < 2 || video.seeking || !video.videoWidth) return false;
    if (this.shownAt !== null && Math.abs(video.currentTime - this.shownAt) < LEAST_STEP) return false;
    const { gl } = this;
    this.shownAt = video.currentTime;
    gl.bindTexture(gl.TEXTURE_2D, this.texture);
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, gl.RGBA, gl.UNSIGNED_BYTE, video);
    this.hasPicture = true;
    if (!this.isTold) this.#tell(video);
    return true;
  }

  // Which colour the mattes have: that of the larger sum, as in unpack_discs; until somebody is seen, red.
  #tell(video) {
    const { width, height } = this.facts, scale = video.videoWidth / width;
    const [tileWidth, tileHeight] = tileSize(height), half = LOOKED_AT / 2;
    this.pad ??= new OffscreenCanvas(LOOKED_AT, LOOKED_AT);
    const pen = this.pad.getContext("2d", { willReadFrequently: true });
    let red = 0, grey = 0;
    for (const centre of [height, 0]) {
      for (const [column, x] of [[0, (centre - tileWidth / 2 + width) % width], [1, centre % width]]) {
        for (const [row, y] of [[0, height - tileHeight / 2], [1, 0]]) {
          pen.drawImage(video, x * scale, y * scale, (tileWidth / 2) * scale, (tileHeight / 2) * scale, column * half, row * half, half, half);
        }
      }
      const { data } = pen.getImageData(0, 0, LOOKED_AT, LOOKED_AT);
      for (let n = 0; n < LOOKED_AT * LOOKED_AT; n += 1) {
        const x = ((n % LOOKED_AT) + 0.5) / half - 1, y = (Math.floor(n / LOOKED_AT) + 0.5) / half - 1;
        if (Math.hypot(x, y) > 1) continue;
        const [r, g, b] = data.subarray(4 * n, 4 * n + 3);
        red += Math.max(r - Math.max(g, b), 0) / 255; grey += Math.min(r, g, b) / 255;
      }
    }
    if (Math.max(red, grey) < TOLD_BY) return;
    this.kind = grey > red ? "grey" : "red";
    this.isTold = true;
  }

  // Draw what one eye sees into a part of what is bound: {x, y, width, height}. `projection` is the camera's matrix, `turn`
  // its rotation, 3 x 3; both in columns, as WebGL has them.
  draw(viewport, projection, turn, eye) {
    const { gl, at, facts } = this;
    if (!this.hasPicture || !viewport.width || !viewport.height) return;
    const number = Math.min(eye === "right" ? 1 : 0, this.eyes - 1);
    // Lenses and parts of the picture are in the picture's order.
    const slot = facts.right_eye_first && this.eyes > 1 ? 1 - number : number, lens = facts.lenses[slot];
    const share = { "side-by-side": [slot / 2, 0, 0.5, 1], "top-bottom": [0, slot / 2, 1, 0.5] }[facts.layout] ?? [0, 0, 1, 1];
    gl.useProgram(this.program);
    gl.bindTexture(gl.TEXTURE_2D, this.texture);
    gl.disable(gl.SCISSOR_TEST);
    gl.enable(gl.BLEND); gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA); // colours are premultiplied
    gl.viewport(viewport.x, viewport.y, viewport.width, viewport.height);
    gl.uniform1i(at.picture, 0);
    gl.uniform4f(at.viewport, viewport.x, viewport.y, viewport.width, viewport.height);
    gl.uniform4f(at.camera, projection[0], projection[5], projection[8], projection[9]);
    gl.uniformMatrix3fv(at.turn, false, turn);
    gl.uniform1i(at.lens, LENSES[lens.kind]); gl.uniform1i(at.kind, KINDS[this.kind]);
    gl.uniform2f(at.fov, radians(lens.fov), radians(lens.tall ?? lens.fov));
    gl.uniform4f(at.circle, ...(lens.center ?? [0.5, 0.5]), ...(lens.radius ?? [0.5, 0.5]));
    gl.uniform4f(at.eye, ...share);
    gl.uniform1i(at.side, facts.height); gl.uniform2i(at.tile, ...tileSize(facts.height)); gl.uniform1i(at.eyeNumber, number);
    gl.uniform3f(at.key, ...(facts.key_color ?? [0, 0, 0]).map((code) => code / 255));
    gl.drawArrays(gl.TRIANGLES, 0, 3);
  }

  clear(shade = 0, opacity = 0) {
    const { gl } = this;
    gl.clearColor(shade, shade, shade, opacity);
    gl.clear(gl.COLOR_BUFFER_BIT);
  }
}

function program(gl) {
  const made = gl.createProgram();
  for (const [kind, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
    const shader = gl.createShader(kind);
    gl.shaderSource(shader, source); gl.compileShader(shader);
    if (!gl.getShaderParameter(shader, gl.COMPILE_STATUS)) throw new Error(gl.getShaderInfoLog(shader));
    gl.attachShader(made, shader);
  }
  gl.linkProgram(made);
  if (!gl.getProgramParameter(made, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(made));
  return made;
}
