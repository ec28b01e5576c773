// As much of CUDA's half floats as the kernels use, for the processor; every result is rounded once, to nearest.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
template <typename To, typename From> inline To same_bits(From from) { To to; std::memcpy(&to, &from, sizeof(to)); return to; }
struct __half {
    unsigned short bits = 0;
    __half() = default;
    // To the nearest half float, ties to even; a double holds every sum here exactly.
    explicit __half(double value) {
        const double size = std::fabs(value);
        const unsigned sign = std::signbit(value) ? 0x8000 : 0;
        int exponent = 0;
        std::frexp(size, &exponent);
        const double unit = std::ldexp(1.0, std::max(exponent - 11, -24));
        const double rounded = std::nearbyint(size / unit) * unit;
        if (!(rounded < 65520.0)) { bits = static_cast<unsigned short>(sign | 0x7c00 | (value != value)); return; }
        std::frexp(rounded, &exponent);
        if (rounded == 0 || exponent < -13) bits = static_cast<unsigned short>(sign | static_cast<unsigned>(std::ldexp(rounded, 24)));
        else bits = static_cast<unsigned short>(sign | (exponent + 14) << 10 | (static_cast<unsigned>(std::ldexp(rounded, 11 - exponent)) & 0x3ff));
    }
    operator float() const {
        const int exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
        const double size = exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
        return static_cast<float>(bits & 0x8000 ? -size : size);
    }
};
struct __half2 { __half x, y; };
template <typename Make> inline __half2 both(Make make) { return {__half(make(0)), __half(make(1))}; }
inline double part(__half2 pair, int i) { return static_cast<float>(i ? pair.y : pair.x); }
inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
inline __half2 __float2half2_rn(float x) { return {__half(x), __half(x)}; }
inline __half2 __hadd2(__half2 a, __half2 b) { return both([&](int i) { return part(a, i) + part(b, i); }); }
inline __half2 __hsub2(__half2 a, __half2 b) { return both([&](int i) { return part(a, i) - part(b, i); }); }
inline __half2 __hmul2(__half2 a, __half2 b) { return both([&](int i) { return part(a, i) * part(b, i); }); }
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) { return both([&](int i) { return part(a, i) * part(b, i) + part(c, i); }); }
inline __half2 __hmin2(__half2 a, __half2 b) { return both([&](int i) { return std::min(part(a, i), part(b, i)); }); }
inline __half2 __hmax2(__half2 a, __half2 b) { return both([&](int i) { return std::max(part(a, i), part(b, i)); }); }
inline float __low2float(__half2 pair) { return pair.x; }
inline float __high2float(__half2 pair) { return pair.y; }
