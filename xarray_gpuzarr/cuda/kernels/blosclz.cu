// Decompress streams of blosclz, the default codec of C-Blosc.
//
// Grid: ceil(n / 8) blocks of 64 threads; a warp decodes 4 streams. `table` has four columns of n words: source, its
// length, target, its length; both lengths are below 2^31. `actual` (u8) is set to the number of bytes that were written,
// and `statuses` (int) to 0, or to 12, nvCOMP's CannotDecompress, if the stream is damaged or does not give as many bytes as
// the target has. Nothing outside source and target is accessed. Neighbours in the table should have similar lengths,
// because a warp goes on until its last stream ends.
// Memory: a source is read ahead, 32 bytes at a time. 8 neighbouring threads copy a literal run or a short match; the whole
// warp copies most bytes of a long match.
// Python, for the bytes of one stream, until they are used up:
//   control < 32 (the first one modulo 32): copy the next control + 1 bytes
//   else: length = (control >> 5) + 2, if that is 9 plus the next bytes up to the first that is not 255; the next byte
//   gives distance = (control % 32 << 8) + byte + 1, or if that is 8192, 8192 plus the next 2 bytes, high one first;
//   `length` times: out.append(out[-distance]). Something must follow a match.
//
// Lane i of a warp reads the tokens of stream i, and describes in a job what is to be copied. Then 8 lanes carry out each
// job. All streams therefore share the instructions of one loop, whatever their tokens are. A lane stores the bytes that it
// has loaded in the next turn, when the next token is known already. Nothing that was loaded is overwritten in between,
// because target bytes are written only once. A __syncwarp separates the writing of jobs from their reading, and stores
// from loads that may read the same bytes. Jobs of odd and even turns are in separate memory.

typedef unsigned char u1;
typedef unsigned short u2;
typedef unsigned int u4;
typedef unsigned long long u8;

constexpr u4 n_lanes = 32, n_warps = 2, all_lanes = 0xffffffff;
constexpr u4 n_each = 4, job_lanes = 8, step = n_each * job_lanes;  // bytes of a job that one lane holds; that 8 lanes hold
constexpr u4 n_streams = n_lanes / job_lanes;  // number of streams of a warp, each with one job at a time
constexpr u4 n_steps = 7;  // largest number of steps of a job that the whole warp copies
constexpr u4 max_job_nbytes = (1 + n_steps) * step;
constexpr u4 ahead_nbytes = 32, ring_nbytes = 128;  // bytes of a source that are loaded ahead; that are staged at most
constexpr u4 token_nbytes = 12;  // bytes that a turn looks at: control, up to 8 of a length, up to 3 of a distance

struct alignas(16) Words { u4 word[4]; };

// Bytes to be copied: first `before` of them, a multiple of `step`, by the whole warp; then `n`, up to `step`, by 8 lanes.
// If `repeat` is not 0, the few bytes at `from` are repeated: `repeat` is their number | reciprocal of this number << 8.
struct alignas(16) Job {
    u1* to;
    u2 n, before;
    u4 repeat;
    const u1* from;
};

// 1024 / n, rounded up. i * reciprocal / 1024 equals i / n for all i below `step`.
struct Reciprocals {
    u2 of[step];  // the first one is 0

    __device__ constexpr Reciprocals() : of()
    {
        for (u4 n = 1; n < step; ++n) of[n] = (u2)((1023 + n) / n);
    }
};
__constant__ const Reciprocals reciprocals;

// A source. Positions are counted from the start of the aligned 32 bytes that its first byte lies in.
struct Input {
    Words* ring;  // the last bytes before `staged`, and a copy of the ring's first 16: a token may cross its end
    const u1* base;
    u4 begin, end, staged;
    Words ahead[2];  // bytes from `staged` on

    __device__ Input(Words* ring, const u1* source, u4 nbytes)
        : ring(ring), begin((u4)(u8)source % ahead_nbytes), end(begin + nbytes), staged(0)
    {
        base = source - begin;
        load();
        stage(begin);
    }

    // Load the bytes from `staged` on: the first 32 and the last ones byte by byte, without those outside the source.
    __device__ void load()
    {
        if (staged > begin && staged + ahead_nbytes <= end)
#pragma unroll
            for (u4 i = 0; i < 2; ++i) ahead[i] = ((const Words*)(base + staged))[i];
        else
#pragma unroll
            for (u4 i = 0; i < 8; ++i) ahead[i / 4].word[i % 4] = word_at(staged + 4 * i);
    }

    // Return 4 bytes, with zeros outside the source. Only the lower five bits of the first byte have a meaning: it is the
    // control byte of a literal run.
    __device__ u4 word_at(u4 at) const
    {
        u4 word = 0;
#pragma unroll 1
        for (u4 i = 0; i < 4; ++i)
            if (at + i >= begin && at + i < end) word |= (u4)(base[at + i] & (at + i == begin ? 0x1f : 0xff)) << 8 * i;
        return word;
    }

    // Make the bytes that a turn looks at, from `at` on, readable. Bytes before `at` may be overwritten. If `at` is
    // `Decoder::nowhere`, the sum wraps around, and nothing happens.
    __device__ void stage(u4 at)
    {
        while (staged < at + token_nbytes && staged < end) {
            const u4 slot = staged % ring_nbytes / 16;
            ring[slot] = ahead[0];
            ring[slot + 1] = ahead[1];
            if (slot == 0) ring[ring_nbytes / 16] = ahead[0];
            staged += ahead_nbytes;
            load();  // the bytes need not have arrived before they are put into the ring
        }
    }

    __device__ const u1* bytes(u4 at) const { return (const u1*)ring + at % ring_nbytes; }
};

struct Token {
    u4 length, distance, next;  // distance: 0 for literals; next: position of the following token
};

// State of one stream, kept by one lane.
struct Decoder {
    static constexpr u4 nowhere = 0xffffffff;  // position behind a damaged token

    Input input;
    u1* target;
    u4 nbytes, at, done;  // nbytes: of the target; at: position of the next token; done: target bytes that jobs cover so far

    // The token that is being copied: `left` bytes from `from` on, at most `limit` in a turn. If a match repeats itself
    // within `step` bytes, `reciprocal` is that of its distance, otherwise 0.
    const u1* from;
    u4 left, limit, distance, reciprocal;
    u4 long_control, long_length;  // control byte and length so far, if more bytes of a length follow at `at`; otherwise 0

    __device__ Decoder(Words* ring, const u1* source, u4 source_nbytes, u1* target, u4 nbytes)
        : input(ring, source, source_nbytes), target(target), nbytes(nbytes), at(input.begin), done(0), from(target),
          left(0), limit(0), distance(0), reciprocal(0), long_control(0), long_length(0)
    {
    }

    __device__ bool is_active() const { return left || at < input.end; }
    __device__ bool is_sound() const { return at != nowhere && done == nbytes; }

    __device__ Token read()
    {
        const u1* const bytes = input.bytes(at);
        const u4 control = bytes[0], second = bytes[1], third = bytes[2];
        const u4 is_long = control >= 0xe0, more = is_long ? second : 0;
        Token token = {control + 1, 0, at + 2 + control};
        if (control >= 32)
            token = {(control >> 5) + 2 + more, (control % 32 << 8) + (is_long ? third : second) + 1, at + 2 + is_long};
        if (more == 255 || token.distance == 8192 || long_control) token = read_long();
        return token;
    }

    // Read a match whose distance or length has several bytes. Up to 8 bytes of the length are read in a turn. While there
    // are more, the token has length 0, and the next turn goes on with them.
    __device__ Token read_long()
    {
        const u1* byte = input.bytes(at);
        u4 next = at, control = long_control, length = long_length;
        if (!control) {
            control = *byte++;
            length = (control >> 5) + 2;
            ++next;
        }
        u4 more = control >= 0xe0 ? 255 : 0;
        while (more == 255 && next < at + 8) {
            more = *byte++;
            length += more;
            ++next;
            if (next >= input.end || length > nbytes - done) more = 0;  // damaged
        }
        long_control = more == 255 ? control : 0;
        long_length = length;
        if (long_control) return Token{0, 0, next};
        const u4 distance = (control % 32 << 8) + byte[0] + 1;
        if (distance != 8192) return Token{length, distance, next + 1};
        return Token{length, distance + ((u4)byte[1] << 8 | byte[2]), next + 3};
    }

    __device__ void parse()
    {
        const Token token = read();
        const bool is_match = token.distance != 0;
        const bool is_whole = token.next + is_match <= input.end;
        const bool fits = is_whole & (token.length <= nbytes - done) & (token.distance <= done);
        from = (is_match ? target : input.base) + (is_match ? done - token.distance : at + 1);
        distance = token.distance;
        limit = distance > step ? distance : step;
        reciprocal = distance < step ? reciprocals.of[distance] : 0;
        left = fits ? token.length : 0;
        at = fits ? token.next : nowhere;
        input.stage(at);
    }

    // Go on with a match; literal runs have at most `step` bytes, for one turn. Bytes that repeat at a distance also repeat
    // at its multiples, so a turn copies more each time.
    __device__ void go_on()
    {
        if (reciprocal) limit = distance * (((step - 1) * reciprocal >> 10) + 1);  // smallest multiple from `step` on
        else if (limit < max_job_nbytes) limit *= 2;
        reciprocal = 0;
        from = target + done - limit;
    }

    __device__ Job take_turn()
    {
        if (left) go_on();
        else if (at < input.end) parse();
        u4 n = left < limit ? left : limit;
        if (n > max_job_nbytes) n = max_job_nbytes;
        const u4 before = n ? (n - 1) / step * step : 0, repeat = reciprocal ? reciprocal << 8 | distance : 0;
        const Job job = {target + done + before, (u2)(n - before), (u2)before, repeat, from + before};
        left -= n;
        done += n;
        return job;
    }
};

// The bytes of a job that lane `lane` of 8 has loaded: every eighth one.
struct Held {
    u4 byte[n_each];
    u1* to;
    int n;  // bytes of the job, minus the lane

    __device__ void load(const Job job, u4 lane)
    {
        const u1* const from = job.from + lane;
        to = job.to + lane;
        n = (int)job.n - (int)lane;
        if (job.repeat)
#pragma unroll
            for (u4 i = 0; i < n_each; ++i) {
                // The multiple of the number of repeated bytes that is not above this byte's position.
                const u4 back = ((lane + i * job_lanes) * (job.repeat >> 8) >> 10) * (job.repeat & 0xff);
                if (n > (int)(i * job_lanes)) byte[i] = (from - back)[i * job_lanes];
            }
        else
#pragma unroll
            for (u4 i = 0; i < n_each; ++i)
                if (n > (int)(i * job_lanes)) byte[i] = from[i * job_lanes];
    }

    __device__ void store() const
    {
#pragma unroll
        for (u4 i = 0; i < n_each; ++i)
            if (n > (int)(i * job_lanes)) to[i * job_lanes] = (u1)byte[i];
    }
};

// Copy the bytes of a job that are not held, with the whole warp.
__device__ inline void copy_before(const Job job, u4 lane)
{
    const u1* const from = job.from - job.before + lane;
    u1* const to = job.to - job.before + lane;
    u4 byte[n_steps];
#pragma unroll
    for (u4 i = 0; i < n_steps; ++i)
        if (i * step < job.before) byte[i] = from[i * step];
#pragma unroll
    for (u4 i = 0; i < n_steps; ++i)
        if (i * step < job.before) to[i * step] = (u1)byte[i];
}

struct Shared {
    Words rings[n_streams][ring_nbytes / 16 + 1];
    Job jobs[2][n_streams];
};

// Decode the streams of all lanes of a warp.
__device__ inline void decode(Decoder& decoder, Shared& shared, u4 lane)
{
    Held held = {};
    u4 turn = 0;
    while (__ballot_sync(all_lanes, decoder.is_active())) {
        Job* const jobs = shared.jobs[turn ^= 1];
        Job job = {};
        if (lane < n_streams) jobs[lane] = job = decoder.take_turn();
        held.store();
        __syncwarp();
        held.load(jobs[lane / job_lanes], lane % job_lanes);
        // Each bit is a stream whose job has bytes for the whole warp.
        for (u4 streams = __ballot_sync(all_lanes, job.before != 0); streams; streams &= streams - 1)
            copy_before(jobs[__ffs((int)streams) - 1], lane);
    }
    held.store();
}

extern "C" __global__ void blosclz(u8 table, u8 n, u8 actual, u8 statuses)
{
    __shared__ Shared shared[n_warps];
    const u4 warp = threadIdx.x / n_lanes, lane = threadIdx.x % n_lanes;
    const u8 row = ((u8)blockIdx.x * n_warps + warp) * n_streams + lane;
    const bool is_row = lane < n_streams && row < n;
    const u8* const column = (const u8*)table + (is_row ? row : 0);
    // A lane without a stream gets one without bytes.
    const u1* const source = is_row ? (const u1*)column[0] : nullptr;
    const u4 source_nbytes = is_row ? (u4)column[n] : 0, nbytes = is_row ? (u4)column[3 * n] : 0;
    Decoder decoder(shared[warp].rings[lane % n_streams], source, source_nbytes, (u1*)column[2 * n], nbytes);
    decode(decoder, shared[warp], lane);
    if (!is_row) return;
    ((u8*)actual)[row] = decoder.done;
    ((int*)statuses)[row] = decoder.is_sound() ? 0 : 12;
}
