/* CRC-32C (RFC 3720, appendix B.4), by tables for eight bytes at a time, or by the processor's own instruction. */

enum { CRC_NBYTES = 4 };       /* length of a CRC that is stored */
enum { STRIPE_NBYTES = 1024 }; /* length of a stripe, see `crc_by_machine` */
static uint32_t crc_tables[8][256], crc_stripe[4][256]; /* crc_stripe: by position and value of a CRC's byte, see `behind_stripe` */

__attribute__((constructor)) static void make_crc_tables(void)
{
    uint32_t bits[32];
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78 : 0);
        crc_tables[0][byte] = crc;
    }
    for (int table = 1; table < 8; table++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = crc_tables[table - 1][byte];
            crc_tables[table][byte] = before >> 8 ^ crc_tables[0][before & 255];
        }
    for (int bit = 0; bit < 32; bit++) { /* each bit of a CRC, extended by STRIPE_NBYTES zero bytes */
        bits[bit] = UINT32_C(1) << bit;
        for (int i = 0; i < STRIPE_NBYTES; i++) bits[bit] = bits[bit] >> 8 ^ crc_tables[0][bits[bit] & 255];
    }
    for (int position = 0; position < 4; position++) /* of a byte in a CRC */
        for (int byte = 0; byte < 256; byte++)
            for (int bit = 0; bit < 8; bit++)
                if (byte & 1 << bit) crc_stripe[position][byte] ^= bits[position * 8 + bit];
}

/* Return a CRC extended by bytes; it is inverted before the first byte and after the last one, here by the caller. */
static uint32_t crc_by_tables(uint32_t crc, const char *at, size_t nbytes)
{
    for (; nbytes >= 8; nbytes -= 8, at += 8) {
        uint32_t low = uint32_at(at) ^ crc, high = uint32_at(at + 4);
        crc = 0;
        for (int i = 0; i < 4; i++) crc ^= crc_tables[7 - i][low >> 8 * i & 255] ^ crc_tables[3 - i][high >> 8 * i & 255];
    }
    for (; nbytes; nbytes--) crc = crc >> 8 ^ crc_tables[0][(crc ^ (unsigned char)*at++) & 255];
    return crc;
}

#ifdef __x86_64__
#if defined(__clang_major__) && __clang_major__ >= 14
#define CRC_MACHINE __attribute__((target("crc32")))
#else
#define CRC_MACHINE __attribute__((target("sse4.2")))
#endif

/* Return a CRC extended by STRIPE_NBYTES zero bytes. */
static uint32_t behind_stripe(uint32_t crc)
{
    return crc_stripe[0][crc & 255] ^ crc_stripe[1][crc >> 8 & 255] ^ crc_stripe[2][crc >> 16 & 255] ^ crc_stripe[3][crc >> 24];
}

/* As `crc_by_tables`. Three neighbouring stripes are computed at once, since the instruction takes three cycles, and one can
 * begin in each cycle. */
CRC_MACHINE static uint32_t crc_by_machine(uint32_t crc, const char *at, size_t nbytes)
{
    uint64_t word[3], wide[3];
    for (; nbytes >= 3 * STRIPE_NBYTES; nbytes -= 3 * STRIPE_NBYTES, at += 3 * STRIPE_NBYTES) {
        wide[0] = crc, wide[1] = wide[2] = 0;
        for (int i = 0; i < STRIPE_NBYTES; i += 8)
            for (int stripe = 0; stripe < 3; stripe++) {
                memcpy(word + stripe, at + stripe * STRIPE_NBYTES + i, 8);
                wide[stripe] = __builtin_ia32_crc32di(wide[stripe], word[stripe]);
            }
        crc = behind_stripe(behind_stripe((uint32_t)wide[0]) ^ (uint32_t)wide[1]) ^ (uint32_t)wide[2];
    }
    for (; nbytes >= 8; nbytes -= 8, at += 8) {
        memcpy(word, at, 8);
        crc = (uint32_t)__builtin_ia32_crc32di(crc, *word);
    }
    for (; nbytes; nbytes--) crc = __builtin_ia32_crc32qi(crc, (unsigned char)*at++);
    return crc;
}
#endif

/* Return the CRC-32C of bytes. */
uint32_t gpuzarr_crc32c(const char *at, int64_t nbytes)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("sse4.2")) return ~crc_by_machine(~0u, at, (size_t)nbytes);
#endif
    return ~crc_by_tables(~0u, at, (size_t)nbytes);
}
