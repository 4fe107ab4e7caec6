/* Decode a row, a chunk that was read, and place it in the output. */

/* Decode at least the first `enough` bytes of a zstd frame while it is read, so that it is never in memory as a whole. This waits
 * for the disk in any call. Return 0 after a failure, or if data that are decoded to their end are anything other than a single
 * frame. */
static int decode_stream(lane_t *lane, int64_t row, void *context, char *dst, int64_t enough)
{
    const work_t *work = lane->work;
    const job_t *job = work->job;
    const files_t *files = work->files;
    int64_t at = files->offset ? files->offset[row] : 0; /* if each row is a file, the file must end before `end` */
    int64_t end = files->offset ? at + work->rows->nbytes[row] : files->most_nbytes + 1;
    int64_t most = piece_nbytes(files);
    int file = file_of(lane, row);
    in_buffer_t in = {lane->room, 0, 0};
    out_buffer_t out = {dst, (size_t)job->packed_nbytes, 0};
    size_t left = 1; /* result of zstd: 0 when a frame is complete */
    ((restart_zstd_t *)job->restart)(context);
    for (;;) {
        if (in.pos == in.size) {
            ssize_t found = at < end ? pread(file, lane->room, (size_t)(end - at < most ? end - at : most), at) : 0;
            int is_at_end = files->offset ? at == end : at < end;
            if (found <= 0) return found == 0 && !left && out.pos == out.size && is_at_end;
            /* a frame whose checksum has to be verified is decoded to its end */
            if (!out.pos && enough < job->packed_nbytes && !is_plain_zstd(lane->room, (size_t)found, out.size))
                enough = job->packed_nbytes;
            at += found, in.size = (size_t)found, in.pos = 0;
            atomic_fetch_add(&lane->work->n_read, found);
        }
        size_t before = in.pos + out.pos;
        if (left) left = ((stream_zstd_t *)job->decode_part)(context, &out, &in);
        if (left > (size_t)-ZSTD_ERRORS || in.pos + out.pos == before) return 0;
        if (enough < job->packed_nbytes && (int64_t)out.pos >= enough) return 1;
    }
}

/* Decode a chunk to `dst`, or to scratch if that is NULL. Return the address of its elements; NULL after a failure. */
static const char *decode_row(lane_t *lane, int64_t row, size_t nbytes, void *context, char *dst)
{
    const job_t *job = lane->work->job;
    const rows_t *rows = lane->work->rows;
    const char *chunk = rows->src[row];
    if (job->codec == RAW && !job->n_stages) /* it may have been read straight to `dst` */
        return dst && dst != chunk ? memcpy(dst, chunk, nbytes) : chunk;
    int goes_straight = dst && !job->n_stages && !job->inflate; /* `inflate` needs scratch for a block */
    char *scratch = goes_straight ? NULL : scratch_of(lane), *block = scratch ? scratch + job->area_nbytes + HEAD_NBYTES : NULL;
    if (!goes_straight && !scratch) return NULL;
    char *to = dst && !job->n_stages ? dst : scratch + HEAD_NBYTES;
    if (job->codec == RAW)
        memcpy(to, chunk, nbytes);
    else if (is_streamed(lane->work)) {
        int64_t enough = dst || job->n_stages ? job->packed_nbytes : wanted_span(job, rows, row).end;
        if (!decode_stream(lane, row, context, to, enough)) return NULL;
    } else {
        int is_decoded = !dst && decode_part(job, context, chunk, nbytes, to, block, wanted_span(job, rows, row));
        if (!is_decoded && !decode_chunk(job, context, chunk, nbytes, to, block)) return NULL;
    }
    return job->n_stages ? take_stages(job, scratch, dst) : to;
}

/* Check the checksums of a chunk. Return its length without them; -1 if one is wrong, or a raw chunk has a wrong length. */
static int64_t without_checksums(const job_t *job, const char *chunk, int64_t nbytes)
{
    for (int64_t i = 0; i < job->n_checksums; i++) {
        nbytes -= CRC_NBYTES;
        if (nbytes < 0 || gpuzarr_crc32c(chunk, nbytes) != uint32_at(chunk + nbytes)) return -1;
    }
    return job->codec == RAW && nbytes != job->packed_nbytes ? -1 : nbytes;
}

/* Decode and place a chunk that was read. Return 0 if it has to be left. */
static int place_row(lane_t *lane, int64_t row, void *context)
{
    const job_t *job = lane->work->job;
    const rows_t *rows = lane->work->rows;
    int64_t nbytes = rows->nbytes[row], box = first_box(rows, row), end = first_box(rows, row + 1);
    if (!rows->src[row]) return 0;
    char *dst = NULL, *whole = rows->whole ? rows->whole[row] : NULL;
    const char *chunk = rows->src[row];
    if (nbytes != DECODED) {
        nbytes = without_checksums(job, chunk, nbytes);
        if (nbytes < 0) return 0;
        if (!whole && is_direct(job, rows, row)) dst = destination(job, rows, box);
        chunk = decode_row(lane, row, (size_t)nbytes, context, whole ? whole : dst);
    }
    if (!chunk) return 0;
    if (dst) return 1; /* it was decoded to its place */
    if (rows->in_at)
        convert_elements(job, job->out, (positions_t){1, rows->out_at + box}, chunk, (positions_t){1, rows->in_at + box}, end - box);
    else
        for (; box < end; box++) place_box(job, rows, box, chunk);
    return 1;
}

/* Decode and place a row that was read, or fill its boxes if the chunk is missing. Set the status of the row. */
static void finish_row(lane_t *lane, int64_t row, void *context)
{
    const work_t *work = lane->work;
    const rows_t *rows = work->rows;
    int is_absent = rows->nbytes[row] == NO_FILE, is_able = context || !work->job->make_context;
    rows->left[row] = DONE;
    if (is_absent && work->job->fill)
        fill_row(work->job, rows, row);
    else if (is_absent || !is_able || !place_row(lane, row, context))
        rows->left[row] = is_absent ? ABSENT : LEFT;
}
