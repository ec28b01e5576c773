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
