// What lies around the cells of coarse grids; the contract and the reference are in cells.py.

constexpr int THREADS = 128;

// grid: (cells / 128, grids)
extern "C" __global__ void __launch_bounds__(THREADS) greatest_around(const float* cells, float* made, int rows, int columns) {
    const int at = blockIdx.x * THREADS + threadIdx.x;
    if (at >= rows * columns) return;
    const float* const own = cells + static_cast<long long>(blockIdx.y) * rows * columns;
    const int y = at / columns, x = at % columns;
    float greatest = own[at];
    for (int row = max(y - 1, 0); row <= min(y + 1, rows - 1); ++row)
        for (int column = max(x - 1, 0); column <= min(x + 1, columns - 1); ++column)
            greatest = fmaxf(greatest, own[row * columns + column]);
    made[static_cast<long long>(blockIdx.y) * rows * columns + at] = greatest;
}

__device__ __forceinline__ int mirrored(int at, int length) {
    if (length == 1) return 0;
    while (at < 0 || at >= length) at = at < 0 ? -at : 2 * length - 2 - at;
    return at;
}

// grid: (cells / 128, grids)
extern "C" __global__ void __launch_bounds__(THREADS) mean_around(const float* cells, float* made, int rows, int columns) {
    const int at = blockIdx.x * THREADS + threadIdx.x;
    if (at >= rows * columns) return;
    const float* const own = cells + static_cast<long long>(blockIdx.y) * rows * columns;
    const int y = at / columns, x = at % columns;
    float sum = 0.f;
    for (int row = y - 2; row <= y + 2; ++row)
        for (int column = x - 2; column <= x + 2; ++column)
            sum += own[mirrored(row, rows) * columns + mirrored(column, columns)];
    made[static_cast<long long>(blockIdx.y) * rows * columns + at] = sum / 25.f;
}
