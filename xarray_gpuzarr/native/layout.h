/* Where each field of the structs lies that Python hands over; structs.py declares them once more, and layout.py compares
 * the two when the library is loaded. A field that is missing here is found by the length of its struct. */

typedef struct {
    const char *name; /* of a field; NULL: of none, the length of the whole struct */
    const char *of;
    int64_t offset, nbytes;
} field_t;

#define FIELD(of, name) {#name, #of, (int64_t)offsetof(of, name), (int64_t)sizeof(((of *)0)->name)}
#define WHOLE(of) {NULL, #of, 0, (int64_t)sizeof(of)}

static const field_t fields[] = {
    WHOLE(step_t),
    FIELD(step_t, kind),
    FIELD(step_t, dtype),
    FIELD(step_t, to),
    FIELD(step_t, n_values),
    FIELD(step_t, values),

    WHOLE(steps_t),
    FIELD(steps_t, steps),
    FIELD(steps_t, n_steps),
    FIELD(steps_t, in_itemsize),
    FIELD(steps_t, out_itemsize),
    FIELD(steps_t, in_swap),
    FIELD(steps_t, out_swap),

    WHOLE(stage_t),
    FIELD(stage_t, kind),
    FIELD(stage_t, nbytes),
    FIELD(stage_t, elementsize),
    FIELD(stage_t, dtype),
    FIELD(stage_t, swap),
    FIELD(stage_t, steps),

    WHOLE(job_t),
    FIELD(job_t, codec),
    FIELD(job_t, chunk_nbytes),
    FIELD(job_t, itemsize),
    FIELD(job_t, ndim),
    FIELD(job_t, n_pieces),
    FIELD(job_t, packed_nbytes),
    FIELD(job_t, n_stages),
    FIELD(job_t, n_checksums),
    FIELD(job_t, out_itemsize),
    FIELD(job_t, area_nbytes),
    FIELD(job_t, pieces),
    FIELD(job_t, first_piece),
    FIELD(job_t, chunk_shape),
    FIELD(job_t, in_strides),
    FIELD(job_t, every),
    FIELD(job_t, out_strides),
    FIELD(job_t, out),
    FIELD(job_t, decode),
    FIELD(job_t, make_context),
    FIELD(job_t, free_context),
    FIELD(job_t, decode_part),
    FIELD(job_t, restart),
    FIELD(job_t, unshuffle),
    FIELD(job_t, inflate),
    FIELD(job_t, stages),
    FIELD(job_t, steps),
    FIELD(job_t, index),
    FIELD(job_t, fill),

    WHOLE(rows_t),
    FIELD(rows_t, src),
    FIELD(rows_t, nbytes),
    FIELD(rows_t, first_box),
    FIELD(rows_t, boxes),
    FIELD(rows_t, left),
    FIELD(rows_t, in_at),
    FIELD(rows_t, out_at),
    FIELD(rows_t, whole),

    WHOLE(files_t),
    FIELD(files_t, paths),
    FIELD(files_t, path_at),
    FIELD(files_t, version),
    FIELD(files_t, file),
    FIELD(files_t, offset),
    FIELD(files_t, room),
    FIELD(files_t, room_nbytes),
    FIELD(files_t, max_gap_nbytes),
    FIELD(files_t, most_nbytes),
    FIELD(files_t, waits),
    FIELD(files_t, n_read),
    FIELD(files_t, is_cold),

    WHOLE(lookup_t),
    FIELD(lookup_t, ndim),
    FIELD(lookup_t, n_shards),
    FIELD(lookup_t, n_rows),
    FIELD(lookup_t, axes),
    FIELD(lookup_t, ranges),
    FIELD(lookup_t, index),
    FIELD(lookup_t, table),
    FIELD(lookup_t, most_nbytes),

    WHOLE(encoder_t),
    FIELD(encoder_t, job),
    FIELD(encoder_t, swap),
    FIELD(encoder_t, level),
    FIELD(encoder_t, checksum),
    FIELD(encoder_t, shuffle),
    FIELD(encoder_t, typesize),
    FIELD(encoder_t, blocksize),
    FIELD(encoder_t, cname),
    FIELD(encoder_t, encode),
    FIELD(encoder_t, make_context),
    FIELD(encoder_t, free_context),
    FIELD(encoder_t, set_parameter),
    FIELD(encoder_t, most_nbytes),
    FIELD(encoder_t, keeps_empty),
    FIELD(encoder_t, n_numbers),
    FIELD(encoder_t, swapped),
    FIELD(encoder_t, n_entries),
    FIELD(encoder_t, step),
    FIELD(encoder_t, order),
    FIELD(encoder_t, per_object),
    FIELD(encoder_t, piece),
    FIELD(encoder_t, index_nbytes),
    FIELD(encoder_t, index_is_first),
    FIELD(encoder_t, index_has_checksum),

    WHOLE(object_t),
    FIELD(object_t, path),
    FIELD(object_t, partial),
    FIELD(object_t, at),
    FIELD(object_t, memory),
    FIELD(object_t, memory_nbytes),
    FIELD(object_t, needs_old),
    FIELD(object_t, old),
    FIELD(object_t, old_version),
    FIELD(object_t, old_offset),
    FIELD(object_t, old_nbytes),
    FIELD(object_t, state),
    FIELD(object_t, nbytes),
    FIELD(object_t, code),
    FIELD(object_t, entry),
};

/* Return the fields of all structs, and say how many there are. */
const field_t *gpuzarr_fields(int64_t *n)
{
    *n = (int64_t)(sizeof fields / sizeof *fields);
    return fields;
}
