/* Dtypes of elements, and conversions between them, with NumPy's results to the bit. */

/* Compile a function twice, the second time for newer processors. When the library is loaded, one version is chosen. Sanitizers
 * do not support this. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
#define FOR_EACH_MACHINE __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define FOR_EACH_MACHINE
#endif

enum dtype { BOOL, I1, I2, I4, I8, U1, U2, U4, U8, F2, F4, F8, C8, C16, N_DTYPES };

static const int64_t itemsizes[N_DTYPES] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 8, 16};

/* Conversions of half precision as in NumPy: payloads of NaN are kept, and results are rounded to the nearest, ties to even. */
static float half_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = half >> 10 & 0x1Fu, fraction = half & 0x3FFu, bits;
    float value;
    if (exponent == 0x1F) {
        bits = sign | 0x7F800000u | fraction << 13;
    } else if (exponent) {
        bits = sign | (exponent + 112) << 23 | fraction << 13;
    } else if (fraction) {
        for (exponent = 113; !(fraction & 0x400u); exponent--) fraction <<= 1;
        bits = sign | exponent << 23 | (fraction & 0x3FFu) << 13;
    } else {
        bits = sign;
    }
    memcpy(&value, &bits, sizeof value);
    return value;
}

static double half_to_double(uint16_t half)
{
    if ((half & 0x7C00u) != 0x7C00u) return half_to_float(half); /* for NaN, the detour by float could change the payload */
    uint64_t bits = (uint64_t)(half & 0x8000u) << 48 | UINT64_C(0x7FF) << 52 | (uint64_t)(half & 0x3FFu) << 42;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Return the half that is nearest to a float (`width` 23, `bias` 127) or a double (52, 1023): bits of the fraction, and bias of
 * the exponent. */
static uint16_t rounded_half(uint64_t bits, int width, int bias)
{
    int is_float = bias == 127;
    uint64_t magnitude = bits & ((UINT64_C(1) << (is_float ? 31 : 63)) - 1);
    uint16_t sign = (uint16_t)(bits >> (is_float ? 16 : 48) & 0x8000u);
    int64_t exponent = (int64_t)(magnitude >> width) - bias;
    uint64_t fraction = magnitude & ((UINT64_C(1) << width) - 1);
    if (exponent == bias + 1) { /* infinity or NaN */
        uint16_t payload = (uint16_t)(fraction >> (width - 10));
        return (uint16_t)(sign | 0x7C00u | (fraction && !payload ? 1 : payload));
    }
    if (exponent > 15) return sign | 0x7C00u; /* infinity */
    if (exponent < -25) return sign; /* zero: less than half of the smallest subnormal half */
    int shift = width - 10;
    uint64_t kept = fraction, base = 0;
    if (exponent < -14) { /* the half is subnormal: its fraction includes the leading one */
        kept |= UINT64_C(1) << width;
        shift += (int)(-14 - exponent);
    } else {
        base = (uint64_t)(exponent + 15) << 10;
    }
    uint64_t rest = kept & ((UINT64_C(1) << shift) - 1), middle = UINT64_C(1) << (shift - 1);
    uint64_t half = base + (kept >> shift);
    if (rest > middle || (rest == middle && (half & 1))) half++;
    return (uint16_t)(sign | half);
}

static uint16_t float_to_half(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return rounded_half(bits, 23, 127);
}

static uint16_t double_to_half(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return rounded_half(bits, 52, 1023);
}

/* Set each element of `dst` to `result`, an expression of `x`, the element of `src`. Elements may be unaligned, and memory has no
 * type in C, so memcpy loads and stores them. */
#define EACH(in_t, out_t, result)                     \
    for (int64_t i = 0; i < n; i++) {                 \
        in_t x;                                       \
        memcpy(&x, src + i * (int64_t)sizeof x, sizeof x); \
        out_t y = result;                             \
        memcpy(dst + i * (int64_t)sizeof y, &y, sizeof y); \
    }

typedef void convert_t(char *restrict dst, const char *restrict src, int64_t n);
typedef struct { float real, imag; } c8_t;
typedef struct { double real, imag; } c16_t;

#define CONVERTER(in, in_t, out, out_t, result) \
    FOR_EACH_MACHINE static void in##_to_##out(char *restrict dst, const char *restrict src, int64_t n) { EACH(in_t, out_t, result) }
#define TO_REALS(in, in_t, x)                                                                                   \
    CONVERTER(in, in_t, i1, int8_t, x) CONVERTER(in, in_t, i2, int16_t, x) CONVERTER(in, in_t, i4, int32_t, x)  \
    CONVERTER(in, in_t, i8, int64_t, x) CONVERTER(in, in_t, bool, uint8_t, (x) != 0)                            \
    CONVERTER(in, in_t, f4, float, x) CONVERTER(in, in_t, f8, double, x)

TO_REALS(bool, uint8_t, x != 0)
TO_REALS(i1, int8_t, x)
TO_REALS(i2, int16_t, x)
TO_REALS(i4, int32_t, x)
TO_REALS(i8, int64_t, x)
TO_REALS(u1, uint8_t, x)
TO_REALS(u2, uint16_t, x)
TO_REALS(u4, uint32_t, x)
TO_REALS(u8, uint64_t, x)
CONVERTER(f4, float, bool, uint8_t, x != 0)
CONVERTER(f8, double, bool, uint8_t, x != 0)
CONVERTER(f4, float, f8, double, x)
CONVERTER(f8, double, f4, float, x)
CONVERTER(f2, uint16_t, f4, float, half_to_float(x))
CONVERTER(f2, uint16_t, f8, double, half_to_double(x))
CONVERTER(f2, uint16_t, bool, uint8_t, (x & 0x7FFF) != 0)
CONVERTER(f4, float, f2, uint16_t, float_to_half(x))
CONVERTER(f8, double, f2, uint16_t, double_to_half(x))
CONVERTER(f4, float, c8, c8_t, ((c8_t){x, 0}))
CONVERTER(f8, double, c16, c16_t, ((c16_t){x, 0}))
CONVERTER(c8, c8_t, c16, c16_t, ((c16_t){x.real, x.imag}))
CONVERTER(c16, c16_t, c8, c8_t, ((c8_t){(float)x.real, (float)x.imag}))

/* A row of the table below, in the order of `enum dtype`. Conversions to signed and unsigned integers of one width give the same
 * bits. */
#define OF_INTEGERS(in) {in##_to_bool, in##_to_i1, in##_to_i2, in##_to_i4, in##_to_i8, \
                         in##_to_i1, in##_to_i2, in##_to_i4, in##_to_i8, NULL, in##_to_f4, in##_to_f8, NULL, NULL}

/* Conversions by the dtypes of operand and result. Python combines two of them for some missing pairs, and leaves the others to
 * NumPy. */
static convert_t *const converters[N_DTYPES][N_DTYPES] = {
    [BOOL] = OF_INTEGERS(bool), [I1] = OF_INTEGERS(i1), [I2] = OF_INTEGERS(i2), [I4] = OF_INTEGERS(i4),
    [I8] = OF_INTEGERS(i8), [U1] = OF_INTEGERS(u1), [U2] = OF_INTEGERS(u2), [U4] = OF_INTEGERS(u4),
    [U8] = OF_INTEGERS(u8), [F2] = {[BOOL] = f2_to_bool, [F4] = f2_to_f4, [F8] = f2_to_f8},
    [F4] = {[BOOL] = f4_to_bool, [F2] = f4_to_f2, [F8] = f4_to_f8, [C8] = f4_to_c8},
    [F8] = {[BOOL] = f8_to_bool, [F2] = f8_to_f2, [F4] = f8_to_f4, [C16] = f8_to_c16},
    [C8] = {[C16] = c8_to_c16}, [C16] = {[C8] = c16_to_c8},
};
