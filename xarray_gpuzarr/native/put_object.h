/* Write the units of an object and its index, to a file that replaces the stored one once it is complete, or to memory. */

enum { WRITEBACK_NBYTES = 1 << 20 }; /* bytes whose writeback is started at a time, see `start_writeback` */

/* Create the directories of a path. Errors show when its file is created. */
static void make_folders(const char *path)
{
    char *folder = strdup(path);
    for (char *at = folder ? strchr(folder + 1, '/') : NULL; at; at = strchr(at + 1, '/')) {
        *at = 0;
        mkdir(folder, 0777);
        *at = '/';
    }
    free(folder);
}

/* Create the file that replaces an object's file once it is complete. */
static int open_partial(const object_t *object, progress_t *progress)
{
    for (int attempt = 0; attempt < 2 && progress->file < 0; attempt++) {
        if (attempt > 0) make_folders(object->partial); /* the first attempt failed with ENOENT */
        progress->file = open(object->partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (progress->file < 0 && errno != ENOENT) return 0;
    }
    progress->is_partial = progress->file >= 0, progress->replaces = !access(object->path, F_OK);
    return (int)progress->is_partial;
}

/* Start the writeback of written bytes. Before ext4 renames a file over another, it starts the writeback of all its bytes: for
 * 32 MB, a write takes 25 ms with this function, 42 ms without. */
static void start_writeback(progress_t *progress, int64_t end)
{
    if (end - progress->started < WRITEBACK_NBYTES || !progress->replaces) return;
#ifdef __linux__
    sync_file_range(progress->file, progress->started, end - progress->started, SYNC_FILE_RANGE_WRITE);
#endif
    progress->started = end;
}

/* Write bytes of an object, at an offset in it. Return 0 after a failure. */
static int put(const object_t *object, progress_t *progress, const char *at, int64_t nbytes, int64_t offset)
{
    if (!object->path) {
        if (offset + nbytes > object->memory_nbytes) return errno = ENOBUFS, 0;
        return at == object->memory + offset || memcpy(object->memory + offset, at, (size_t)nbytes) != NULL;
    }
    if (progress->file < 0 && !open_partial(object, progress)) return 0;
    for (ssize_t n; nbytes > 0; at += n, offset += n, nbytes -= n) {
        int64_t some = nbytes > WRITEBACK_NBYTES && progress->replaces ? WRITEBACK_NBYTES : nbytes;
        n = pwrite(progress->file, at, (size_t)some, offset);
        if (n == 0) errno = ENOSPC;
        if (n <= 0 && !(n < 0 && errno == EINTR)) return 0;
        if (n < 0) n = 0;
        start_writeback(progress, offset + n);
    }
    return 1;
}

/* Write a unit at the end of what is written of its object, and enter its chunks in the index. Return 0 after a failure. */
static int put_unit(writing_t *writing, object_t *object, progress_t *progress, int64_t number, const unit_t *unit)
{
    const encoder_t *encoder = writing->encoder;
    int64_t end = progress->end, next = (number + 1) * encoder->step;
    for (const part_t *part = unit->part; part < unit->part + unit->n_parts; part++) {
        if (!put(object, progress, part->at ? part->at : unit->room + part->first, part->nbytes, end))
            return fail(writing, object, REFUSED, encoder->order[number * encoder->step]);
        end += part->nbytes;
    }
    for (int64_t k = number * encoder->step; k < next && k < encoder->n_entries; k++) {
        int64_t entry = encoder->order[k], nbytes = progress->nbytes[entry];
        if (nbytes < 0) continue;
        put_little(progress->index + entry * ENTRY_NBYTES, (uint64_t)progress->end, 8);
        put_little(progress->index + entry * ENTRY_NBYTES + 8, (uint64_t)nbytes, 8);
        progress->end += nbytes;
    }
    return 1;
}

/* Write the index of a shard. Return 0 after a failure. */
static int put_index(const encoder_t *encoder, const object_t *object, progress_t *progress)
{
    int64_t nbytes = encoder->n_entries * ENTRY_NBYTES, at = encoder->index_is_first ? 0 : progress->end;
    if (encoder->index_has_checksum) put_little(progress->index + nbytes, gpuzarr_crc32c(progress->index, nbytes), CRC_NBYTES);
    return put(object, progress, progress->index, encoder->index_nbytes, at);
}

/* Close a file if it is open. Return 0 after a failure. */
static int close_file_of(int *file)
{
    int open_file = *file;
    *file = -1;
    return open_file < 0 || close(open_file) == 0;
}

/* Complete an object whose units have all been written: write its index, and replace the stored object, or delete that if no chunk
 * is stored. Return 0 after a failure. */
static int complete(writing_t *writing, object_t *object, progress_t *progress)
{
    const encoder_t *encoder = writing->encoder;
    int64_t first = encoder->index_is_first ? encoder->index_nbytes : 0;
    int64_t is_there = progress->end > first; /* whether the object has any chunk */
    if (!is_old_kept(object)) return fail(writing, object, CHANGED, -1);
    close_file_of(&progress->old_file);
    if (!is_there && object->path && unlink(object->path) && errno != ENOENT && errno != ENOTDIR)
        return fail(writing, object, REFUSED, -1);
    if (is_there && encoder->index_nbytes && !put_index(encoder, object, progress)) return fail(writing, object, REFUSED, -1);
    if (is_there && object->path && (!close_file_of(&progress->file) || rename(object->partial, object->path)))
        return fail(writing, object, REFUSED, -1);
    progress->is_partial = 0, object->state = WRITTEN;
    object->nbytes = is_there ? progress->end + encoder->index_nbytes - first : 0;
    return 1;
}
