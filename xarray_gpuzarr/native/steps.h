/* Steps: operations on elements while they are placed in the output. Byte order, conversion, mask, scale and offset give
 * NumPy's results to the bit. Compile with -ffp-contract=off, so that products are rounded before sums. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Compile a function twice, the second time for newer processors. When the library is loaded, one version is chosen. Sanitizers
 * do not support this. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
#define FOR_EACH_MACHINE __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define FOR_EACH_MACHINE
#endif

enum dtype { BOOL, I1, I2, I4, I8, U1, U2, U4, U8, F2, F4, F8, C8, C16, N_DTYPES };
enum kind { CONVERT, MASK, MULTIPLY, DIVIDE, ADD }; /* of a step */
enum { BLOCK_ELEMENTS = 1024, MOST_ITEMSIZE = 16, MOST_MASKED = 4 }; /* elements of a block; longest element; most masked values */

/* One operation on elements that follow each other in memory. */
typedef struct {
    int64_t kind, dtype; /* `enum kind`, and the dtype of the operands */
    int64_t to;          /* for CONVERT: dtype of the results */
    int64_t n_values;    /* for MASK: number of masked values */
    char values[MOST_MASKED * MOST_ITEMSIZE]; /* of `dtype`: masked values, a factor, a divisor or a summand */
} step_t;

/* The operations that convert stored elements to those of the output. */
typedef struct {
    const step_t *steps;
    int64_t n_steps;
    int64_t in_itemsize, out_itemsize;
    int64_t in_swap, out_swap; /* size of the numbers whose bytes are reversed, before the first and after the last step; 0: none */
} steps_t;

/* Positions of elements: `stride` bytes apart, or at the multiples of `stride` that `index` lists. */
typedef struct {
    int64_t stride;
    const int64_t *index;
} positions_t;

/* 16 bytes at any address, which are loaded and stored at once. */
typedef uint64_t wide_t __attribute__((vector_size(16), aligned(1), may_alias));

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

#define IN_PLACE(of_t, result) { char *dst = at; const char *src = at; EACH(of_t, of_t, result) }
#define HALVES(operation) \
    IN_PLACE(uint16_t, float_to_half(half_to_float(x) operation half_to_float(h)))

/* Carry out a MULTIPLY, DIVIDE or ADD. Complex elements are only added to: their product in NumPy depends on the machine. */
FOR_EACH_MACHINE static void compute(const step_t *step, char *at, int64_t n)
{
    float f; double d; uint16_t h; c8_t c; c16_t z;
    memcpy(&f, step->values, sizeof f), memcpy(&d, step->values, sizeof d), memcpy(&h, step->values, sizeof h);
    memcpy(&c, step->values, sizeof c), memcpy(&z, step->values, sizeof z);
    switch (step->kind * N_DTYPES + step->dtype) {
    case MULTIPLY * N_DTYPES + F2: HALVES(*) break;
    case MULTIPLY * N_DTYPES + F4: IN_PLACE(float, x * f) break;
    case MULTIPLY * N_DTYPES + F8: IN_PLACE(double, x * d) break;
    case DIVIDE * N_DTYPES + F2: HALVES(/) break;
    case DIVIDE * N_DTYPES + F4: IN_PLACE(float, x / f) break;
    case DIVIDE * N_DTYPES + F8: IN_PLACE(double, x / d) break;
    case ADD * N_DTYPES + F2: HALVES(+) break;
    case ADD * N_DTYPES + F4: IN_PLACE(float, x + f) break;
    case ADD * N_DTYPES + F8: IN_PLACE(double, x + d) break;
    case ADD * N_DTYPES + C8: IN_PLACE(c8_t, ((c8_t){x.real + c.real, x.imag + c.imag})) break;
    case ADD * N_DTYPES + C16: IN_PLACE(c16_t, ((c16_t){x.real + z.real, x.imag + z.imag})) break;
    default: break;
    }
}

/* Replace elements that equal `value` by NaN, whose bits are `nan`: compilers may change a NaN in arithmetic. */
#define MASK_REALS(of_t, bits_t, nan)                          \
    for (int64_t i = 0; i < n; i++) {                          \
        of_t x;                                                \
        bits_t bits;                                           \
        memcpy(&x, at + i * (int64_t)sizeof x, sizeof x);      \
        memcpy(&bits, &x, sizeof bits);                        \
        bits = x == value ? (bits_t)(nan) : bits;              \
        memcpy(at + i * (int64_t)sizeof bits, &bits, sizeof bits); \
    }

/* Replace both parts of elements that equal the one at `from` by NaN. */
#define MASK_COMPLEX(of_t, part_t, nan)                        \
    for (int64_t i = 0; i < n; i++) {                          \
        of_t x, value_;                                        \
        part_t part = nan;                                     \
        memcpy(&x, at + i * (int64_t)sizeof x, sizeof x);      \
        memcpy(&value_, from, sizeof value_);                  \
        if (x.real != value_.real || x.imag != value_.imag) continue; \
        memcpy(at + i * (int64_t)sizeof x, &part, sizeof part); \
        memcpy(at + i * (int64_t)sizeof x + sizeof part, &part, sizeof part); \
    }

FOR_EACH_MACHINE static void mask_value(int64_t dtype, const char *from, char *at, int64_t n)
{
    if (dtype == F2) {
        uint16_t half;
        memcpy(&half, from, sizeof half);
        float value = half_to_float(half);
        IN_PLACE(uint16_t, half_to_float(x) == value ? 0x7E00 : x)
    } else if (dtype == F4) {
        float value;
        memcpy(&value, from, sizeof value);
        MASK_REALS(float, uint32_t, 0x7FC00000)
    } else if (dtype == F8) {
        double value;
        memcpy(&value, from, sizeof value);
        MASK_REALS(double, uint64_t, UINT64_C(0x7FF8000000000000))
    } else if (dtype == C8) {
        MASK_COMPLEX(c8_t, uint32_t, 0x7FC00000)
    } else if (dtype == C16) {
        MASK_COMPLEX(c16_t, uint64_t, UINT64_C(0x7FF8000000000000))
    }
}

static void take_step(const step_t *step, char *at, int64_t n)
{
    if (step->kind != MASK) {
        compute(step, at, n);
        return;
    }
    for (int64_t i = 0; i < step->n_values; i++)
        mask_value(step->dtype, step->values + i * itemsizes[step->dtype], at, n);
}

FOR_EACH_MACHINE static void swap_bytes(char *at, int64_t nbytes, int64_t unit)
{
    switch (unit) {
    case 2: { int64_t n = nbytes / 2; IN_PLACE(uint16_t, x << 8 | x >> 8) break; }
    case 4: { int64_t n = nbytes / 4; IN_PLACE(uint32_t, __builtin_bswap32(x)) break; }
    case 8: { int64_t n = nbytes / 8; IN_PLACE(uint64_t, __builtin_bswap64(x)) break; }
    default: break;
    }
}

/* `itemsize` is a constant where possible, so that memcpy becomes an instruction. */
#define MOVE(itemsize, to, from) \
    for (int64_t i = 0; i < n; i++) memcpy(to, from, itemsize)
#define MOVE_ITEMS(itemsize)                                                                                      \
    if (in.index && out.index)                                                                                    \
        MOVE(itemsize, dst + out.index[i] * out.stride, src + in.index[i] * in.stride);                           \
    else if (in.index)                                                                                            \
        MOVE(itemsize, dst + i * out.stride, src + in.index[i] * in.stride);                                      \
    else if (out.index)                                                                                           \
        MOVE(itemsize, dst + out.index[i] * out.stride, src + i * in.stride);                                     \
    else                                                                                                          \
        MOVE(itemsize, dst + i * out.stride, src + i * in.stride)

/* Copy n elements. */
static void copy_elements(char *dst, positions_t out, const char *src, positions_t in, int64_t n, int64_t itemsize)
{
    if (!in.index && !out.index && in.stride == itemsize && out.stride == itemsize) {
        if (n * itemsize == 64) /* some compilers make a call or `rep movs` of a memcpy of this length */
            for (int i = 0; i < 4; i++) ((wide_t *)dst)[i] = ((const wide_t *)src)[i];
        else
            memcpy(dst, src, (size_t)(n * itemsize));
        return;
    }
    if (!in.stride && !in.index && out.stride == itemsize && !out.index && n > 1) { /* repeat one element, in doubling copies */
        memcpy(dst, src, (size_t)itemsize);
        for (int64_t done = 1; done < n; done *= 2)
            memcpy(dst + done * itemsize, dst, (size_t)((n - done < done ? n - done : done) * itemsize));
        return;
    }
    switch (itemsize) {
    case 1: MOVE_ITEMS(1); break;
    case 2: MOVE_ITEMS(2); break;
    case 4: MOVE_ITEMS(4); break;
    case 8: MOVE_ITEMS(8); break;
    default: MOVE_ITEMS((size_t)itemsize);
    }
}

/* Return the positions after the first n. Without an index, the caller moves the address instead. */
static positions_t positions_after(positions_t positions, int64_t n)
{
    return positions.index ? (positions_t){positions.stride, positions.index + n} : positions;
}

/* Take all steps of up to BLOCK_ELEMENTS elements. The output is written only once, since it is seldom in a cache. */
static void take_block(const steps_t *steps, char *dst, positions_t out, const char *src, positions_t in, int64_t n)
{
    char one[BLOCK_ELEMENTS * MOST_ITEMSIZE], other[BLOCK_ELEMENTS * MOST_ITEMSIZE];
    int is_run = !out.index && out.stride == steps->out_itemsize && !steps->out_swap;
    const char *from = src;
    char *room = one;
    /* Elements are brought together first, unless the first step converts contiguous ones from where they are. */
    if (in.index || in.stride != steps->in_itemsize || steps->in_swap || !steps->n_steps || steps->steps->kind != CONVERT) {
        copy_elements(room, (positions_t){steps->in_itemsize, NULL}, src, in, n, steps->in_itemsize);
        swap_bytes(room, n * steps->in_itemsize, steps->in_swap);
        from = room;
    }
    for (int64_t i = 0; i < steps->n_steps; i++) {
        const step_t *step = steps->steps + i;
        if (step->kind != CONVERT) {
            take_step(step, room, n);
            continue;
        }
        int goes_to_output = is_run && i + 1 == steps->n_steps;
        room = from == one ? other : one;
        if (goes_to_output) room = dst;
        converters[step->dtype][step->to](room, from, n);
        from = room;
    }
    swap_bytes(room, n * steps->out_itemsize, steps->out_swap);
    if (room != dst) copy_elements(dst, out, room, (positions_t){steps->out_itemsize, NULL}, n, steps->out_itemsize);
}

/* Take all steps of n elements, in blocks that fit the core's nearest cache, and write the results to the output. */
static void take_steps(const steps_t *steps, char *dst, positions_t out, const char *src, positions_t in, int64_t n)
{
    for (int64_t at = 0; at < n; at += BLOCK_ELEMENTS) {
        int64_t some = n - at < BLOCK_ELEMENTS ? n - at : BLOCK_ELEMENTS;
        take_block(steps, out.index ? dst : dst + at * out.stride, positions_after(out, at),
                   in.index ? src : src + at * in.stride, positions_after(in, at), some);
    }
}

/* The first sum is the element itself: 0 + -0.0 would be 0.0. */
#define SUM_UP(of_t)                                      \
    of_t sum = 0;                                         \
    for (int64_t i = 0; i < n; i++) {                     \
        of_t x;                                           \
        memcpy(&x, at + i * (int64_t)sizeof x, sizeof x); \
        sum = i ? (of_t)(sum + x) : x;                    \
        memcpy(at + i * (int64_t)sizeof x, &sum, sizeof sum); \
    }

#define ACCUMULATE(of_t) { SUM_UP(of_t) break; }

/* From the first NaN on, all sums are that NaN. Compilers differ in which operand a sum of two NaN returns, so these sums are
 * written again. `sum += 0` turns a signalling NaN into a quiet one, as any sum does. */
#define ACCUMULATE_REALS(of_t)                            \
    {                                                     \
        SUM_UP(of_t)                                      \
        int64_t i = sum == sum ? n : 0, found = 0;        \
        for (; i < n; i++) {                              \
            char *to = at + i * (int64_t)sizeof sum;      \
            if (found) memcpy(to, &sum, sizeof sum);      \
            else memcpy(&sum, to, sizeof sum);            \
            if (!found && sum != sum) found = 1, sum += 0; \
        }                                                 \
        break;                                            \
    }

/* Replace each element by the sum of all elements up to it. */
static void accumulate(char *at, int64_t n, int64_t dtype)
{
    switch (dtype) {
    case I1: case U1: ACCUMULATE(uint8_t)
    case I2: case U2: ACCUMULATE(uint16_t)
    case I4: case U4: ACCUMULATE(uint32_t)
    case I8: case U8: ACCUMULATE(uint64_t)
    case F4: ACCUMULATE_REALS(float)
    case F8: ACCUMULATE_REALS(double)
    default: break;
    }
}
