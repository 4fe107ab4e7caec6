// Streams of blosclz, the default codec of C-Blosc.
//
// Grid: ceil(n / 4) blocks of 128 threads; a warp decodes one stream. `table` has four columns of n words: source, its
// length, target, its length, both lengths below 2^31. `actual` (u8) gets the bytes written; `statuses` (int) 0, or
// 12 if the stream is damaged or does not give as many bytes as the target has. Nothing outside of both is touched.
// Memory: the source is read ahead, 128 bytes at a time; a literal run or a match is written by neighbouring threads.
// Python, for the bytes of one stream, until they are used up:
//   control < 32 (the first one modulo 32): copy the next control + 1 bytes
//   else: length = (control >> 5) + 2, if that is 9 plus the next bytes up to the first that is not 255; the next byte
//   gives distance = (control % 32 << 8) + byte + 1, or if that is 8192, 8192 plus the next 2 bytes, high one first;
//   `length` times: out.append(out[-distance]). Something must follow a match.
//
// All lanes read the same bytes and so take the same turns: each comes to every __syncwarp. There, what all lanes have
// written before, to the target or to shared memory, becomes visible to all of them. Between two of them a lane may run
// ahead or fall behind. That is harmless: target bytes are written once, and read by other lanes only behind the
// __syncwarp that begins a match; the ring is overwritten only behind one, when all bytes there have been used.

typedef unsigned char u1;
typedef unsigned int u4;
typedef unsigned long long u8;

constexpr u4 n_lanes = 32, n_warps = 4, ahead_nbytes = 4 * n_lanes, ring_nbytes = 2 * ahead_nbytes;
constexpr u4 token_nbytes = 33;  // of a literal run; a match takes 4, and as many again as its length has bytes

// A stream, counted from where the 128 bytes begin that its first one lies in.
struct Input {
    u4* ring;  // bytes before `staged`, as many as fit
    const u1* base;
    u4 begin, end, lane;
    u4 staged, ahead;  // ahead: this lane's part of the bytes from `staged` on

    __device__ Input(u4* ring, const u1* source, u4 nbytes, u4 lane)
        : ring(ring), begin((u4)(u8)source % ahead_nbytes), end(begin + nbytes), lane(lane), staged(0)
    {
        base = source - begin;
        ahead = load(0);
        stage();
        stage();
    }

    __device__ u4 load(u4 first) const
    {
        const u4 at = first + 4 * lane;
        if (at >= begin && at + 4 <= end) return *(const u4*)(base + at);
        u4 word = 0;
        for (u4 i = 0; i < 4; ++i)
            if (at + i >= begin && at + i < end) word |= (u4)base[at + i] << 8 * i;
        return word;
    }

    __device__ void stage()
    {
        __syncwarp();
        ring[staged % ring_nbytes / 4 + lane] = ahead;
        __syncwarp();
        staged += ahead_nbytes;
        ahead = load(staged);  // waited for when it is next stored
    }

    // Makes a whole token at `at` readable; bytes before `at` may then be gone.
    __device__ void advance(u4 at)
    {
        if (staged < at + token_nbytes && staged < end) stage();
    }

    __device__ u4 byte(u4 at) const { return ((const u1*)ring)[at % ring_nbytes]; }

    // Four bytes.
    __device__ u4 word(u4 at) const
    {
        const u4 low = ring[at % ring_nbytes / 4], high = ring[(at + 4) % ring_nbytes / 4];
        return (u4)(((u8)high << 32 | low) >> at % 4 * 8);
    }
};

struct Match {
    u4 length, distance, next;  // next: where the following token begins
};

__device__ inline Match match_at(Input& input, u4 at, u4 control, u4 room)
{
    Match match = {(control >> 5) + 2, (control % 32 << 8) + 1, at + 1};
    if (match.length == 9) {
        u4 more;
        do {
            input.advance(match.next);
            more = input.byte(match.next++);
            match.length += more;
        } while (more == 255 && match.next < input.end && match.length <= room);
        input.advance(match.next);
    }
    const u4 word = input.word(match.next);
    match.distance += word & 0xff;
    match.next += 1;
    if (match.distance != 8192) return match;
    match.distance += (word >> 8 & 0xff) << 8 | (word >> 16 & 0xff);
    match.next += 2;
    return match;
}

// Writes `target` as if byte by byte from `distance` before it. All that is read lies before it: where a match overlaps
// itself, it repeats those bytes.
__device__ inline void repeat(u1* target, u4 distance, u4 length, u4 lane)
{
    constexpr u4 n = 4;
    const u1* const source = target - distance;
    u4 from = lane, step = n_lanes;
    if (distance < n_lanes && distance < length) {
        from %= distance;
        step %= distance;
    }
    u4 at = lane;
    for (; at - lane + n * n_lanes <= length; at += n * n_lanes) {
        u1 byte[n];
#pragma unroll
        for (u4 i = 0; i < n; ++i) {
            byte[i] = source[from];
            from += step;
            if (from >= distance) from -= distance;
        }
#pragma unroll
        for (u4 i = 0; i < n; ++i) target[at + i * n_lanes] = byte[i];
    }
    for (; at < length; at += n_lanes) {
        target[at] = source[from];
        from += step;
        if (from >= distance) from -= distance;
    }
}

// Returns the bytes written; `status` is set to 0 if all is well.
__device__ inline u4 decode(Input& input, u1* target, u4 nbytes, u4 lane, int& status)
{
    u4 at = input.begin, done = 0, mask = 0x1f;
    while (at < input.end) {
        input.advance(at);
        const u4 control = input.byte(at) & mask, room = nbytes - done;
        mask = 0xff;
        if (control < 32) {
            const u4 length = control + 1;
            if (length > room || length >= input.end - at) return done;
            if (lane < length) target[done + lane] = (u1)input.byte(at + 1 + lane);
            at += 1 + length;
            done += length;
        } else {
            const Match match = match_at(input, at, control, room);
            if (match.next >= input.end || match.length > room || match.distance > done) return done;
            __syncwarp();
            repeat(target + done, match.distance, match.length, lane);
            at = match.next;
            done += match.length;
        }
    }
    if (done == nbytes) status = 0;
    return done;
}

extern "C" __global__ void blosclz(u8 table, u8 n, u8 actual, u8 statuses)
{
    __shared__ u4 rings[n_warps][ring_nbytes / 4];
    const u4 warp = threadIdx.x / n_lanes, lane = threadIdx.x % n_lanes;
    const u8 row = (u8)blockIdx.x * n_warps + warp;
    if (row >= n) return;
    const u8* const column = (const u8*)table + row;
    Input input(rings[warp], (const u1*)column[0], (u4)column[n], lane);
    int status = 12;
    const u4 done = decode(input, (u1*)column[2 * n], (u4)column[3 * n], lane, status);
    if (lane != 0) return;
    ((u8*)actual)[row] = done;
    ((int*)statuses)[row] = status;
}
