// A warp for the processor: lanes are coroutines, which meet where the GPU's do. COMPOSITE is the kernel's source.
#include <cuda_fp16.h>
#include <ucontext.h>
#include <vector>
#define __global__
#define __device__
#define __shared__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(threads, blocks)
#define __builtin_assume(what)
struct float2 { float x, y; };
struct float3 { float x, y, z; };
struct alignas(16) float4 { float x, y, z, w; };
struct Index { int x, y, z; };
static Index blockIdx, threadIdx;
static float2 make_float2(float x, float y) { return {x, y}; }
static float3 make_float3(float x, float y, float z) { return {x, y, z}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
using std::max;
using std::min;
static unsigned __float_as_uint(float value) { return same_bits<unsigned>(value); }
static float __uint_as_float(unsigned bits) { return same_bits<float>(bits); }
static int __float_as_int(float value) { return same_bits<int>(value); }
static float __int_as_float(int bits) { return same_bits<float>(bits); }
static int __float2int_rn(float value) { return static_cast<int>(std::lrint(value)); }
static float __saturatef(float value) { return value > 0.f ? std::min(value, 1.f) : 0.f; }
static unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const unsigned long long bytes = static_cast<unsigned long long>(b) << 32 | a;
    unsigned made = 0;
    for (int i = 0; i < 4; ++i) made |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return made;
}
static int atomicAdd(int* at, int more) { const int before = *at; *at += more; return before; }

constexpr int LANES = 32;
static ucontext_t scheduler, lanes[LANES];
static bool finished_lanes[LANES];
static unsigned offered[LANES];
static void meet() { swapcontext(&lanes[threadIdx.x], &scheduler); }
static void __syncthreads() { meet(); }
static void __syncwarp() { meet(); }
// What every lane offers, until all have read it.
template <typename Read> static auto exchanged(unsigned value, Read read) {
    offered[threadIdx.x] = value;
    meet();
    const auto result = read();
    meet();
    return result;
}
static unsigned __shfl_sync(unsigned, unsigned value, int lane) { return exchanged(value, [&] { return offered[lane]; }); }
static unsigned __shfl_up_sync(unsigned, unsigned value, int by) { return exchanged(value, [&] { return offered[max(threadIdx.x - by, 0)]; }); }
static float __shfl_down_sync(unsigned, float value, int by) {
    return __uint_as_float(exchanged(__float_as_uint(value), [&] { return offered[min(threadIdx.x + by, LANES - 1)]; }));
}
static float __shfl_up_sync(unsigned mask, float value, int by) { return __uint_as_float(__shfl_up_sync(mask, __float_as_uint(value), by)); }
static bool __any_sync(unsigned, bool value) {
    return exchanged(value, [] { return std::any_of(offered, offered + LANES, [](unsigned one) { return one != 0; }); });
}
alignas(16) float4 shared_cells[2048];
static unsigned long long __cvta_generic_to_shared(const volatile void* at) {
    return reinterpret_cast<const volatile char*>(at) - reinterpret_cast<char*>(shared_cells);
}
static void* __cvta_shared_to_generic(unsigned address) { return reinterpret_cast<char*>(shared_cells) + static_cast<int>(address); }
#include COMPOSITE
static const Job* launched;
static void run_lane(int lane) {
    composite(*launched);
    finished_lanes[lane] = true;
    swapcontext(&lanes[lane], &scheduler);
}
extern "C" void run_composite(const int* grid, const Job* job) {
    static std::vector<char> stacks[LANES];
    launched = job;
    for (blockIdx.z = 0; blockIdx.z < grid[2]; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < grid[1]; ++blockIdx.y)
            for (blockIdx.x = 0; blockIdx.x < grid[0]; ++blockIdx.x) {
                for (int lane = 0; lane < LANES; ++lane) {
                    stacks[lane].resize(1 << 16);
                    getcontext(&lanes[lane]);
                    lanes[lane].uc_stack.ss_sp = stacks[lane].data(), lanes[lane].uc_stack.ss_size = stacks[lane].size();
                    finished_lanes[lane] = false;
                    makecontext(&lanes[lane], reinterpret_cast<void (*)()>(run_lane), 1, lane);
                }
                for (bool any = true; any;) {
                    any = false;
                    for (threadIdx.x = 0; threadIdx.x < LANES; ++threadIdx.x)
                        if (!finished_lanes[threadIdx.x]) swapcontext(&scheduler, &lanes[threadIdx.x]), any = true;
                }
            }
}
