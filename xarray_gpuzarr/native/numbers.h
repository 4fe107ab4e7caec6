/* Numbers in the bytes of files and frames, whatever the order of bytes of the machine. */

/* Return the number that four bytes in little-endian order stand for. */
static uint32_t uint32_at(const char *at)
{
    const unsigned char *b = (const unsigned char *)at;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

/* Return the number that up to eight bytes stand for, in big-endian order if `is_big`, else in little-endian order. */
static uint64_t number_at(const char *at, int64_t nbytes, int64_t is_big)
{
    uint64_t number = 0;
    for (int64_t i = 0; i < nbytes; i++) number = number << 8 | (uint8_t)at[is_big ? i : nbytes - 1 - i];
    return number;
}

/* Write a number as its lowest `nbytes` bytes in little-endian order. */
static void put_little(char *at, uint64_t value, int nbytes)
{
    for (int i = 0; i < nbytes; i++) at[i] = (char)(value >> 8 * i);
}
