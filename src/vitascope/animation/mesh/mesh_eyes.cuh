// An eye in the opening between its lids: the ball in layers, and the lashes of a lid that closes. Part of mesh.cu.

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

// The line at the edge of a lid that closes, and what hangs below.
__device__ float lash_mask(const Lashes& lashes, const Scene& scene, float x, float y) {
    const float dx = x - lashes.corner.x, dy = y - lashes.corner.y;
    const float share = dx * lashes.along.x + dy * lashes.along.y;
    const float below =
        dx * lashes.down.x + dy * lashes.down.y - interpolated(lashes.edge_shares, lashes.edge_heights, share);
    const float place = fminf(fmaxf(share, 0.f), 1.f) * (LASHES - 1);
    const int first = min(static_cast<int>(place), LASHES - 2);
    const float near = scene.lash_lengths[first], far = scene.lash_lengths[first + 1];
    const float length = (near + (far - near) * (place - first)) * lashes.reach;
    const float thickness = fmaxf(0.35f * length, 0.6f);
    const float from_line = (below - 0.2f * length) / thickness;
    const float from_lid = below > 0.f ? below / fmaxf(length, 0.6f) : below / thickness;
    const float ends = fminf(fmaxf(fminf(share, 1.f - share) / 0.06f + 0.5f, 0.f), 1.f);
    const float cover =
        fmaxf(scene.line_cover * expf(-from_line * from_line), scene.fringe_cover * expf(-from_lid * from_lid));
    return cover * ends * lashes.shown;
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
        const float mask = lash_mask(eye.lashes, scene, x, y);
        under = mixed(under, {look.lash_colour[0], look.lash_colour[1], look.lash_colour[2]}, mask);
    }
    return under;
}
