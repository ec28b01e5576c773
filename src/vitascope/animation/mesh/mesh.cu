// The mesh animator's picture, whole; the contract is gpu_drawing.py's, the reference what animator.py draws with OpenCV.
//
//   cover    which triangle is drawn last at each sample of the maps
//   resolve  where a sample's colour comes from: its triangle's affine function, or the map that it refines
//   paint    the portrait's person read through the finest map at a pixel and laid over what is behind; eyeballs, lashes
//            and the inside of the mouth on top
//
// Masks of soft polygons are integrals of a normal distribution over a polygon: means over fixed offsets of how far inside
// the places around a pixel lie.

#ifndef POINTS        // of the rig: face, then rings
#define POINTS 828
#endif
#define FACE_POINTS 468
#define MAPS 6        // surroundings, face, one for each feature, and one as fine as the picture
#define FEATURES 3
#define FINEST 5
#define EYE_OUTLINE 64
#define LID_POINTS 9
#define MOUTH_OUTLINE 80
#define OFFSETS 32
#define FOLD 0.7f     // as in maps.py
#define CREASES 9     // as in creases.py

struct Matrix {
    float xx, xy, x0, yx, yy, y0;
};

struct Patch {
    int left, top, width, height;
};

struct Map {
    float left, top, step;
    int width, height, first, parent;
};

struct Lashes {
    float shown, reach;
    float2 corner, along, down;
    float edge_shares[LID_POINTS], edge_heights[LID_POINTS];
};

struct Eye {
    Patch patch;
    float shown, apart;
    Matrix back;
    float2 gaze_shift;
    Lashes lashes;
    float2 outline[EYE_OUTLINE];
};

struct Mouth {
    Patch patch;
    float shown, own_share, light_px, tongue_light, cavity_light, lower_bow;
    int is_made, has_upper_teeth;
    Matrix tongue, own, upper_teeth, lower_teeth;
    float2 outline[MOUTH_OUTLINE];
};

// What changes with every picture.
struct Frame {
    float2 places[POINTS], sources[POINTS];
    float depths[FACE_POINTS];
    Map maps[MAPS];
    Patch features[FEATURES];
    Patch skin;              // of the face's map only this part is looked through for folds
    float creases[CREASES];  // how strongly the skin folds
    int even;                // unused: what follows begins at a multiple of eight bytes
    Eye eyes[2];
    Mouth mouth;
};

struct EyeLook {
    const unsigned char *texture, *ball, *white;
    const float* shut_lashes;  // how far they cover the skin
    const unsigned char* rim;  // of glasses, in front of the upper lid: colours times cover
    Patch patch;
    float2 iris;
    float radius, feather;
    float lash_colour[3];
    int lash_columns, lash_rows;
    Patch rim_patch;  // empty without glasses
};

// A part of the portrait with its skin folded.
struct Crease {
    const unsigned char* rgba;
    Patch patch;
};

// What stays with the portrait.
struct Scene {
    const unsigned char *rgba, *behind;  // the person, colours times cover; the background of the box
    const int4* triangles;  // three points, and the map
    const float2* offsets;
    const float4 *upper_teeth, *lower_teeth, *tongue;  // colours times cover, and cover
    const unsigned char* own_rgb;
    const float* own_cover;
    int width, height, left, top, right, bottom, triangle_count, teeth_width, teeth_height, tongue_width, tongue_height;
    int own_width, own_height;
    float mouth_feather, teeth_middle, iris_ends, white_begins, lashes_left, lashes_top, lashes_right, lashes_bottom;
    float cavity[3];
    EyeLook eyes[2];
    Crease creases[CREASES];
};

// --- the maps -----------------------------------------------------------------------------------------------------------

struct Span {
    float left, right;
};

// Where a row meets a triangle, in the samples of a map.
__device__ Span span_of(const float2 (&corners)[3], float row) {
    Span span = {3e38f, -3e38f};
    for (int edge = 0; edge < 3; ++edge) {
        const float2 from = corners[edge], to = corners[(edge + 1) % 3];
        if (row < fminf(from.y, to.y) || row > fmaxf(from.y, to.y)) continue;
        const float rise = to.y - from.y;
        const float slope = fabsf(rise) < 1e-6f ? 0.f : (to.x - from.x) / rise;
        const float crossing = from.x + (row - from.y) * slope;
        span.left = fminf(span.left, crossing);
        span.right = fmaxf(span.right, crossing);
    }
    return span;
}

__device__ void corners_of(const Frame& frame, const Map& map, int4 triangle, float2 (&corners)[3]) {
    const int points[3] = {triangle.x, triangle.y, triangle.z};
    for (int corner = 0; corner < 3; ++corner) {
        const float2 place = frame.places[points[corner]];
        corners[corner] = make_float2((place.x - map.left) / map.step, (place.y - map.top) / map.step);
    }
}

// Later triangles cover earlier ones: rings in their order, then skin, what is farther away first.
__device__ unsigned long long order_of(const Frame& frame, int4 triangle, int index) {
    unsigned nearness = 0;
    if (triangle.x < FACE_POINTS) {
        const float depth = frame.depths[triangle.x] + frame.depths[triangle.y] + frame.depths[triangle.z];
        const unsigned bits = __float_as_uint(-depth);
        nearness = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    }
    return static_cast<unsigned long long>(nearness) << 32 | static_cast<unsigned>(index + 1);
}

// A warp for each triangle. grid: (triangles / warps of a block)
extern "C" __global__ void cover(const __grid_constant__ Scene scene, const Frame* frame, unsigned long long* keys) {
    const int index = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (index >= scene.triangle_count) return;
    const int4 triangle = scene.triangles[index];
    const Map map = frame->maps[triangle.w];
    if (map.width == 0) return;
    float2 corners[3];
    corners_of(*frame, map, triangle, corners);
    const float low = fminf(fminf(corners[0].y, corners[1].y), corners[2].y);
    const float high = fmaxf(fmaxf(corners[0].y, corners[1].y), corners[2].y);
    const float west = fminf(fminf(corners[0].x, corners[1].x), corners[2].x);
    const float east = fmaxf(fmaxf(corners[0].x, corners[1].x), corners[2].x);
    const int first_row = max(static_cast<int>(ceilf(low)), 0), rows = min(static_cast<int>(floorf(high)), map.height - 1) - first_row + 1;
    const int first_column = max(static_cast<int>(ceilf(west - 1e-3f)), 0);
    const int columns = min(static_cast<int>(floorf(east + 1e-3f)), map.width - 1) - first_column + 1;
    if (rows <= 0 || columns <= 0) return;
    const unsigned long long order = order_of(*frame, triangle, index);
    for (int sample = lane; sample < rows * columns; sample += 32) {
        const int row = first_row + sample / columns, column = first_column + sample % columns;
        const Span span = span_of(corners, row);
        if (column < ceilf(span.left - 1e-3f) || column > floorf(span.right + 1e-3f)) continue;
        atomicMax(&keys[map.first + row * map.width + column], order);
    }
}

// A map between its samples; beyond them its border goes on.
__device__ float2 read_map(const Map& map, const float2* samples, float x, float y) {
    const float column = fminf(fmaxf((x - map.left) / map.step, 0.f), map.width - 1.f);
    const float row = fminf(fmaxf((y - map.top) / map.step, 0.f), map.height - 1.f);
    const int x0 = static_cast<int>(column), y0 = static_cast<int>(row);
    const int x1 = min(x0 + 1, map.width - 1), y1 = min(y0 + 1, map.height - 1);
    const float right = column - x0, down = row - y0;
    const float2* upper = samples + map.first + y0 * map.width;
    const float2* lower = samples + map.first + y1 * map.width;
    const float2 a = upper[x0], b = upper[x1], c = lower[x0], d = lower[x1];
    const float2 above = make_float2(a.x + (b.x - a.x) * right, a.y + (b.y - a.y) * right);
    const float2 below = make_float2(c.x + (d.x - c.x) * right, c.y + (d.y - c.y) * right);
    return make_float2(above.x + (below.x - above.x) * down, above.y + (below.y - above.y) * down);
}

// What a triangle shows at a sample is an affine function of the place.
__device__ float2 shown_by(const Frame& frame, const Map& map, int4 triangle, int column, int row) {
    float2 corners[3];
    corners_of(frame, map, triangle, corners);
    const float2 first = frame.sources[triangle.x], second = frame.sources[triangle.y], third = frame.sources[triangle.z];
    const float2 edge1 = make_float2(corners[1].x - corners[0].x, corners[1].y - corners[0].y);
    const float2 edge2 = make_float2(corners[2].x - corners[0].x, corners[2].y - corners[0].y);
    const float area = edge1.x * edge2.y - edge1.y * edge2.x;
    // A triangle that is a line shows its first corner: it covers no more than a row of samples.
    if (fabsf(area) < 1e-4f) return first;
    const float x = column - corners[0].x, y = row - corners[0].y;
    const float along1 = (x * edge2.y - y * edge2.x) / area, along2 = (y * edge1.x - x * edge1.y) / area;
    return make_float2(
        first.x + along1 * (second.x - first.x) + along2 * (third.x - first.x),
        first.y + along1 * (second.y - first.y) + along2 * (third.y - first.y));
}

// grid: (samples / threads of a block, maps of this level). A level reads the one before it.
extern "C" __global__ void resolve(
    const __grid_constant__ Scene scene, const Frame* frame, const unsigned long long* keys, float2* samples, int first_map) {
    const Map map = frame->maps[first_map + blockIdx.y];
    const int sample = blockIdx.x * blockDim.x + threadIdx.x;
    if (sample >= map.width * map.height) return;
    const int row = sample / map.width, column = sample % map.width;
    const unsigned index = static_cast<unsigned>(keys[map.first + sample]);
    const float x = map.left + map.step * column, y = map.top + map.step * row;
    samples[map.first + sample] = index > 0 ? shown_by(*frame, map, scene.triangles[index - 1], column, row)
        : map.parent < 0                    ? make_float2(x, y)
                                            : read_map(frame->maps[map.parent], samples, x, y);
}

// --- pixels -------------------------------------------------------------------------------------------------------------

struct Colour {
    float r, g, b;
};

__device__ Colour mixed(Colour from, Colour to, float share) {
    return {from.r + (to.r - from.r) * share, from.g + (to.g - from.g) * share, from.b + (to.b - from.b) * share};
}

__device__ float2 applied(const Matrix& matrix, float x, float y) {
    return make_float2(matrix.xx * x + matrix.xy * y + matrix.x0, matrix.yx * x + matrix.yy * y + matrix.y0);
}

__device__ bool holds(const Patch& patch, int x, int y) {
    return x >= patch.left && y >= patch.top && x < patch.left + patch.width && y < patch.top + patch.height;
}

// An RGB picture between its pixels, its border repeated.
__device__ Colour read_rgb(const unsigned char* rgb, int width, int height, float x, float y) {
    x = fminf(fmaxf(x, 0.f), width - 1.f);
    y = fminf(fmaxf(y, 0.f), height - 1.f);
    const int x0 = static_cast<int>(x), y0 = static_cast<int>(y), x1 = min(x0 + 1, width - 1), y1 = min(y0 + 1, height - 1);
    const float right = x - x0, down = y - y0;
    const unsigned char *a = rgb + 3ll * (y0 * width + x0), *b = rgb + 3ll * (y0 * width + x1);
    const unsigned char *c = rgb + 3ll * (y1 * width + x0), *d = rgb + 3ll * (y1 * width + x1);
    float channels[3];
    for (int k = 0; k < 3; ++k) {
        const float above = a[k] + (b[k] - a[k]) * right, below = c[k] + (d[k] - c[k]) * right;
        channels[k] = above + (below - above) * down;
    }
    return {channels[0], channels[1], channels[2]};
}

// The person: colours times cover, and the cover; codes of 255.
struct Layer {
    float r, g, b, cover;
};

__device__ Layer mixed(Layer from, Layer to, float share) {
    return {from.r + (to.r - from.r) * share, from.g + (to.g - from.g) * share, from.b + (to.b - from.b) * share,
        from.cover + (to.cover - from.cover) * share};
}

// The same of an RGBA picture.
__device__ Layer read_rgba(const unsigned char* rgba, int width, int height, float x, float y) {
    x = fminf(fmaxf(x, 0.f), width - 1.f);
    y = fminf(fmaxf(y, 0.f), height - 1.f);
    const int x0 = static_cast<int>(x), y0 = static_cast<int>(y), x1 = min(x0 + 1, width - 1), y1 = min(y0 + 1, height - 1);
    const auto at = [&](int column, int row) {
        const unsigned char* pixel = rgba + 4ll * (static_cast<long long>(row) * width + column);
        return Layer{static_cast<float>(pixel[0]), static_cast<float>(pixel[1]), static_cast<float>(pixel[2]), static_cast<float>(pixel[3])};
    };
    return mixed(mixed(at(x0, y0), at(x1, y0), x - x0), mixed(at(x0, y1), at(x1, y1), x - x0), y - y0);
}

// A plane between its samples, nothing beyond them.
template <typename Sample, typename Sum>
__device__ Sum read_bounded(const Sample* plane, int width, int height, float x, float y, Sum zero) {
    const float floor_x = floorf(x), floor_y = floorf(y);
    Sum sum = zero;
    if (!(floor_x >= -1.f && floor_y >= -1.f && floor_x < width && floor_y < height)) return sum;
    const int x0 = static_cast<int>(floor_x), y0 = static_cast<int>(floor_y);
    for (int dy = 0; dy < 2; ++dy)
        for (int dx = 0; dx < 2; ++dx) {
            const int column = x0 + dx, row = y0 + dy;
            if (column < 0 || row < 0 || column >= width || row >= height) continue;
            const float weight = (dx ? x - floor_x : 1.f - (x - floor_x)) * (dy ? y - floor_y : 1.f - (y - floor_y));
            sum.add(plane[row * width + column], weight);
        }
    return sum;
}

struct Cover {
    float value;
    __device__ void add(float sample, float weight) { value += sample * weight; }
};

// A texel of what is laid over the cavity; colours are stored times cover.
struct Laid {
    float r, g, b, cover;
    __device__ void add(float4 sample, float weight) {
        r += sample.x * weight;
        g += sample.y * weight;
        b += sample.z * weight;
        cover += sample.w * weight;
    }
};

__device__ float squared_distance(float2 from, float2 to, float x, float y) {
    const float2 along = make_float2(to.x - from.x, to.y - from.y), away = make_float2(x - from.x, y - from.y);
    const float length = along.x * along.x + along.y * along.y;
    const float share = length > 0.f ? fminf(fmaxf((away.x * along.x + away.y * along.y) / length, 0.f), 1.f) : 0.f;
    const float dx = away.x - share * along.x, dy = away.y - share * along.y;
    return dx * dx + dy * dy;
}

// How far a place lies inside a polygon, pixels; outside it is negative.
template <int COUNT>
__device__ float depth_inside(const float2 (&outline)[COUNT], float x, float y) {
    float nearest = 3e38f;
    bool inside = false;
    float2 from = outline[COUNT - 1];
    for (int point = 0; point < COUNT; ++point) {
        const float2 to = outline[point];
        nearest = fminf(nearest, squared_distance(from, to, x, y));
        if ((from.y > y) != (to.y > y) && x < from.x + (y - from.y) * (to.x - from.x) / (to.y - from.y)) inside = !inside;
        from = to;
    }
    return inside ? sqrtf(nearest) : -sqrtf(nearest);
}

// The mask of a polygon, which pixels on its outline belong to, smoothed by a normal distribution.
template <int COUNT>
__device__ float soft_mask(const float2 (&outline)[COUNT], const float2* offsets, float deviation, float x, float y) {
    const float depth = depth_inside(outline, x, y), reach = 2.9f * deviation + 1.f;
    if (depth > reach) return 1.f;
    if (depth < -reach) return 0.f;
    float sum = 0.f;
    for (int k = 0; k < OFFSETS; ++k) {
        const float2 offset = offsets[k];
        sum += fminf(fmaxf(depth_inside(outline, x + deviation * offset.x, y + deviation * offset.y) + 1.f, 0.f), 1.f);
    }
    return sum / OFFSETS;
}

// --- an eye between its lids: the ball in layers, and the lashes of a lid that closes -----------------------------------

// A function given at rising places, straight in between; beyond them it stays.
template <int COUNT>
__device__ float interpolated(const float (&places)[COUNT], const float (&values)[COUNT], float at) {
    if (!(at > places[0])) return values[0];
    for (int next = 1; next < COUNT; ++next)
        if (at < places[next]) {
            const float share = (at - places[next - 1]) / (places[next] - places[next - 1]);
            return values[next - 1] + share * (values[next] - values[next - 1]);
        }
    return values[COUNT - 1];
}

// How far the lashes of a lid that closes cover the skin.
__device__ float lash_mask(const Lashes& lashes, const EyeLook& look, const Scene& scene, float x, float y) {
    const float dx = x - lashes.corner.x, dy = y - lashes.corner.y;
    const float share = dx * lashes.along.x + dy * lashes.along.y;
    const float below =
        dx * lashes.down.x + dy * lashes.down.y - interpolated(lashes.edge_shares, lashes.edge_heights, share);
    const float column = (share - scene.lashes_left) * (look.lash_columns / (scene.lashes_right - scene.lashes_left)) - 0.5f;
    const float row = (below / lashes.reach - scene.lashes_top) * (look.lash_rows / (scene.lashes_bottom - scene.lashes_top)) - 0.5f;
    return read_bounded(look.shut_lashes, look.lash_columns, look.lash_rows, column, row, Cover{}).value * lashes.shown;
}

__device__ Colour with_eye(Colour under, const Eye& eye, const EyeLook& look, const Scene& scene, float x, float y) {
    if (eye.shown > 0.f) {
        const float mask = eye.shown * soft_mask(eye.outline, scene.offsets, look.feather > 0.3f ? look.feather : 0.f, x, y);
        if (mask > 0.f) {
            const float2 place = applied(eye.back, x, y);
            const int width = look.patch.width, height = look.patch.height;
            const float left = place.x - look.patch.left, top = place.y - look.patch.top;
            Colour seen = read_rgb(look.texture, width, height, left, top);
            if (eye.apart > 0.f) {
                const float2 shift = eye.gaze_shift;
                const float dx = place.x - shift.x - look.iris.x, dy = place.y - shift.y - look.iris.y;
                const float distance = sqrtf(dx * dx + dy * dy) / look.radius;
                const float beyond =
                    fminf(fmaxf((distance - scene.iris_ends) / (scene.white_begins - scene.iris_ends), 0.f), 1.f);
                const Colour ball = read_rgb(look.ball, width, height, left - shift.x, top - shift.y);
                seen = mixed(seen, mixed(ball, read_rgb(look.white, width, height, left, top), beyond), eye.apart);
            }
            under = mixed(under, seen, mask);
        }
    }
    if (eye.lashes.shown > 0.f) {
        const float mask = lash_mask(eye.lashes, look, scene, x, y);
        under = mixed(under, {look.lash_colour[0], look.lash_colour[1], look.lash_colour[2]}, mask);
        if (look.rim_patch.width > 0) {
            // It stays as it is, whatever the lid behind it does.
            const float2 place = applied(eye.back, x, y);
            const Patch& patch = look.rim_patch;
            const Layer rim = read_rgba(look.rim, patch.width, patch.height, place.x - patch.left, place.y - patch.top);
            const float shown = eye.lashes.shown, left = 1.f - shown * rim.cover / 255.f;
            under = {under.r * left + shown * rim.r, under.g * left + shown * rim.g, under.b * left + shown * rim.b};
        }
    }
    return under;
}

__device__ Colour with_laid(Colour under, const float4* texture, int width, int height, float2 place, float light) {
    const Laid laid = read_bounded(texture, width, height, place.x, place.y, Laid{});
    const float left = 1.f - laid.cover;
    return {under.r * left + light * laid.r, under.g * left + light * laid.g, under.b * left + light * laid.b};
}

// Cavity, tongue, lower and upper teeth, back to front, in the light that comes in between the lips.
__device__ Colour made_inside(const Mouth& mouth, const Scene& scene, float x, float y) {
    const float deep = mouth.cavity_light;
    Colour colour = {scene.cavity[0] * deep, scene.cavity[1] * deep, scene.cavity[2] * deep};
    const float2 on_tongue = applied(mouth.tongue, x, y);
    colour = with_laid(colour, scene.tongue, scene.tongue_width, scene.tongue_height, on_tongue, mouth.tongue_light);
    // The arch of a jaw that drops is seen from above: the row rises to its sides.
    float2 on_teeth = applied(mouth.lower_teeth, x, y);
    const float across = on_teeth.x - scene.teeth_middle;
    on_teeth.y += mouth.lower_bow * across * across;
    colour = with_laid(colour, scene.lower_teeth, scene.teeth_width, scene.teeth_height, on_teeth, 1.f);
    if (mouth.has_upper_teeth) {
        on_teeth = applied(mouth.upper_teeth, x, y);
        colour = with_laid(colour, scene.upper_teeth, scene.teeth_width, scene.teeth_height, on_teeth, 1.f);
    }
    // Darkest under the upper lip: the light falls from above.
    float open = 0.f;
    for (int k = 0; k < OFFSETS; ++k) {
        const float2 offset = scene.offsets[k];
        const float from_x = x + mouth.light_px * offset.x, from_y = y + mouth.light_px * (offset.y - 0.5f);
        open += fminf(fmaxf(depth_inside(mouth.outline, from_x, from_y) + 1.f, 0.f), 1.f);
    }
    const float light = 0.70f + 0.35f * fminf(mouth.shown * open / OFFSETS, 0.9f);
    return {colour.r * light, colour.g * light, colour.b * light};
}

__device__ Colour with_mouth(Colour under, const Mouth& mouth, const Scene& scene, float x, float y) {
    const float mask = mouth.shown * soft_mask(mouth.outline, scene.offsets, scene.mouth_feather, x, y);
    if (mask <= 0.f) return under;
    Colour inside = {0.f, 0.f, 0.f};
    if (mouth.is_made) inside = made_inside(mouth, scene, x, y);
    if (mouth.own_share > 0.f) {
        const float2 place = applied(mouth.own, x, y);
        const Colour own = read_rgb(scene.own_rgb, scene.own_width, scene.own_height, place.x, place.y);
        const float cover = read_bounded(scene.own_cover, scene.own_width, scene.own_height, place.x, place.y, Cover{}).value;
        inside = mouth.is_made ? mixed(inside, own, cover * mouth.own_share) : own;
    }
    return mixed(under, inside, mask);
}

// The portrait is mixed with itself folded where it is read: its patches end as the portrait is.
__device__ Layer with_crease(Layer under, const Crease& crease, float strength, float2 place) {
    const float x = place.x - crease.patch.left, y = place.y - crease.patch.top;
    if (x < 0.f || y < 0.f || x > crease.patch.width - 1.f || y > crease.patch.height - 1.f) return under;
    return mixed(under, read_rgba(crease.rgba, crease.patch.width, crease.patch.height, x, y), strength);
}

__device__ unsigned char code_of(float value) { return static_cast<unsigned char>(__float2int_rn(fminf(fmaxf(value, 0.f), 255.f))); }

// A place beyond a border, mirrored at it.
__device__ float mirrored(float place, int count) { return count - 1.f - fabsf(count - 1.f - fabsf(place)); }

// The portrait at a place of it, its skin folded; beyond its border it goes on mirrored.
__device__ Layer portrait_at(const Scene& scene, const Frame& frame, float2 place) {
    place = make_float2(mirrored(place.x, scene.width), mirrored(place.y, scene.height));
    Layer layer = read_rgba(scene.rgba, scene.width, scene.height, place.x, place.y);
    for (int fold = 0; fold < CREASES; ++fold)
        if (frame.creases[fold] > 0.f) layer = with_crease(layer, scene.creases[fold], frame.creases[fold], place);
    return layer;
}

__device__ bool far_apart(float2 one, float2 other, float x, float y, float limit) {
    return fabsf(other.x - one.x - x) > limit || fabsf(other.y - one.y - y) > limit;
}

// Four samples of a map around a pixel.
struct Cell {
    float2 shown[2][2];
    float right, down;  // of the pixel, from the first sample, pixels
    bool is_folded;
};

__device__ Cell cell_at(const Map& map, const float2* samples, int x, int y) {
    Cell cell = {};
    const int column = static_cast<int>(floorf((x - map.left) / map.step)), row = static_cast<int>(floorf((y - map.top) / map.step));
    if (column < 0 || row < 0 || column + 1 >= map.width || row + 1 >= map.height) return cell;
    const float2* upper = samples + map.first + row * map.width + column;
    cell = {{{upper[0], upper[1]}, {upper[map.width], upper[map.width + 1]}}, x - (map.left + column * map.step), y - (map.top + row * map.step), false};
    const float step = map.step, limit = FOLD * step;
    cell.is_folded = far_apart(cell.shown[0][0], cell.shown[0][1], step, 0.f, limit) || far_apart(cell.shown[1][0], cell.shown[1][1], step, 0.f, limit)
        || far_apart(cell.shown[0][0], cell.shown[1][0], 0.f, step, limit) || far_apart(cell.shown[0][1], cell.shown[1][1], 0.f, step, limit);
    return cell;
}

// Where a map folds, one as fine as the picture is read; where that folds too, colours are mixed: maps.draw_folds.
__device__ Layer skin_at(const Scene& scene, const Frame& frame, const Map& map, const float2* samples, int x, int y) {
    Cell cell = cell_at(map, samples, x, y);
    if (!cell.is_folded) return portrait_at(scene, frame, read_map(map, samples, static_cast<float>(x), static_cast<float>(y)));
    const Map& finest = frame.maps[FINEST];
    if (finest.width > 0) {
        cell = cell_at(finest, samples, x, y);
        if (!cell.is_folded) return portrait_at(scene, frame, read_map(finest, samples, static_cast<float>(x), static_cast<float>(y)));
    }
    Layer layer = {0.f, 0.f, 0.f, 0.f};
    for (int below = 0; below < 2; ++below)
        for (int beside = 0; beside < 2; ++beside) {
            const float2 place = cell.shown[below][beside];
            const Layer one = portrait_at(scene, frame, make_float2(place.x + cell.right - beside, place.y + cell.down - below));
            layer = {layer.r + one.r / 4, layer.g + one.g / 4, layer.b + one.b / 4, layer.cover + one.cover / 4};
        }
    return layer;
}

// The person before the background, which stays where it is.
__device__ Colour over_background(const Scene& scene, Layer layer, int x, int y) {
    const long long pixel = static_cast<long long>(y - scene.top) * (scene.right - scene.left) + (x - scene.left);
    const unsigned char* behind = scene.behind + 3 * pixel;
    // Rounded where the reference is: what the two make of one picture differs by less than a code.
    const float seen = (255.f - rintf(layer.cover)) / 255.f;
    return {rintf(layer.r) + rintf(behind[0] * seen), rintf(layer.g) + rintf(behind[1] * seen),
        rintf(layer.b) + rintf(behind[2] * seen)};
}

// grid: (columns / blockDim.x, rows / blockDim.y) of the box. Outside it nothing moves: the caller has copied the portrait.
extern "C" __global__ void __launch_bounds__(256) paint(
    const __grid_constant__ Scene scene, const Frame* frame, const float2* samples, unsigned char* out) {
    const int x = scene.left + blockIdx.x * blockDim.x + threadIdx.x, y = scene.top + blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= scene.right || y >= scene.bottom) return;
    int map = 1;
    for (int feature = 0; feature < FEATURES; ++feature)
        if (holds(frame->features[feature], x, y)) map = 2 + feature;
    const Layer layer = map > 1 || holds(frame->skin, x, y)
        ? skin_at(scene, *frame, frame->maps[map], samples, x, y)
        : portrait_at(scene, *frame, read_map(frame->maps[map], samples, x, y));
    Colour colour = over_background(scene, layer, x, y);
    for (int eye = 0; eye < 2; ++eye)
        if (holds(frame->eyes[eye].patch, x, y)) colour = with_eye(colour, frame->eyes[eye], scene.eyes[eye], scene, x, y);
    if (holds(frame->mouth.patch, x, y)) colour = with_mouth(colour, frame->mouth, scene, x, y);
    unsigned char* pixel = out + 3ll * (static_cast<long long>(y) * scene.width + x);
    pixel[0] = code_of(colour.r);
    pixel[1] = code_of(colour.g);
    pixel[2] = code_of(colour.b);
}
