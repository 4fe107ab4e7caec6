// What the PTX instructions in our kernels compute, on a host: `ptx_text.py` puts these in their place.
//
// References: PTX ISA, "Floating Point Instructions" and "cvt". A result that is not a number is 0x7fff..., which x86
// makes of nothing: kernels may rely on no payload.
#pragma once
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

// An operand, which assembly takes as bits.
template <class F, class T> static inline F ptx_in(const T& operand)
{
    static_assert(sizeof(F) == sizeof(T) && !std::is_integral<T>::value, "an operand of another type");
    F value;
    std::memcpy(&value, (const void*)&operand, sizeof value);
    return value;
}

template <class F, class T> static inline void ptx_out(T& operand, F value)
{
    static_assert(sizeof(F) == sizeof(T) && !std::is_integral<T>::value, "an operand of another type");
    if (value != value) {
        std::memset(&value, 0xff, sizeof value);
        value = std::copysign(value, (F)1);
    }
    std::memcpy((void*)&operand, &value, sizeof value);
}

// As .ftz has it, which is for 32 bits only.
template <bool ftz, class F> static inline F ptx_flushed(F value)
{
    return ftz && sizeof(F) == 4 && std::fabs(value) < std::numeric_limits<F>::min() ? std::copysign((F)0, value) : value;
}

template <char op, class F> static inline F ptx_computed(F a, F b)
{
    switch (op) {
    case '+': return a + b;
    case '-': return a - b;
    case '*': return a * b;
    default: return a / b;
    }
}

// `rounding` is one of <cfenv>.
template <char op, int rounding, bool ftz, class F, class R, class A, class B>
static inline void ptx_binary(R& r, const A& a, const B& b)
{
    const F x = ptx_flushed<ftz>(ptx_in<F>(a)), y = ptx_flushed<ftz>(ptx_in<F>(b));
    if (rounding == FE_TONEAREST) return ptx_out<F>(r, ptx_flushed<ftz>(ptx_computed<op>(x, y)));
    std::fesetround(rounding);
    const volatile F from_x = x, from_y = y, exact = ptx_computed<op, F>(from_x, from_y);
    std::fesetround(FE_TONEAREST);
    ptx_out<F>(r, ptx_flushed<ftz>((F)exact));
}

template <int rounding, bool ftz, class To, class From, class R, class A> static inline void ptx_convert(R& r, const A& a)
{
    if (rounding != FE_TONEAREST) std::fesetround(rounding);
    const volatile From value = ptx_flushed<ftz>(ptx_in<From>(a));
    const volatile To converted = (To)value;
    if (rounding != FE_TONEAREST) std::fesetround(FE_TONEAREST);
    ptx_out<To>(r, ptx_flushed<ftz>((To)converted));
}

// Factors are taken for numbers of type F.
template <class F, class R, class A, class B, class C> static inline void ptx_mad_wide(R& r, A a, B b, C c)
{
    static_assert(sizeof(A) == 4 && sizeof(B) == 4 && sizeof(C) == 8 && sizeof(R) == 8, "an operand of another type");
    static_assert(std::is_integral<A>::value && std::is_integral<B>::value, "an operand of another type");
    r = (R)((unsigned long long)((long long)(F)a * (F)b) + (unsigned long long)c);
}
