/* The object that is stored already, whose chunks are copied, or changed in part. */

/* Read bytes of the stored object. Return 0 after a failure. */
static int read_old(const object_t *object, const progress_t *progress, char *to, int64_t nbytes, int64_t offset)
{
    if (object->old) return memcpy(to, object->old + offset, (size_t)nbytes) != NULL;
    for (ssize_t n; nbytes > 0; to += n, offset += n, nbytes -= n)
        if ((n = pread(progress->old_file, to, (size_t)nbytes, offset)) <= 0) return 0;
    return 1;
}

/* Whether the stored object is still the one that the write started from. */
static int is_old_kept(const object_t *object)
{
    struct stat now;
    if (!object->path || !object->needs_old) return 1;
    if (stat(object->path, &now)) return !object->old_nbytes;
    if (!object->old_nbytes) return S_ISDIR(now.st_mode); /* no object was stored, and a directory is none */
    return is_version(&now, object->old_version);
}

/* Record that a stored chunk could not be read: it is damaged, or the object was changed meanwhile. Return 0. */
static int fail_to_read(writing_t *writing, object_t *object, int64_t entry)
{
    return fail(writing, object, is_old_kept(object) ? DAMAGED : CHANGED, entry);
}

/* Return whether a chunk is stored, after opening the stored file, once for all threads; -1 if it cannot be opened or has another
 * version. */
static int find_stored(writing_t *writing, object_t *object, int64_t entry)
{
    progress_t *progress = writing->progress + (object - writing->objects);
    int64_t state = UNFINISHED;
    if (!object->old_nbytes || object->old_nbytes[entry] == NO_FILE) return 0;
    pthread_mutex_lock(&progress->lock);
    if (object->path && progress->old_file < 0) {
        progress->old_file = open(object->path, READ_FLAGS);
        if (progress->old_file < 0 && errno != ENOENT)
            state = REFUSED;
        else if (!is_of_version(progress->old_file, object->old_version))
            state = CHANGED; /* or deleted */
    }
    pthread_mutex_unlock(&progress->lock);
    if (state == UNFINISHED) return 1;
    fail(writing, object, state, -1);
    return -1;
}
