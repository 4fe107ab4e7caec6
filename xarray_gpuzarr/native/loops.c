/* Compiled loops, which read files, decode chunks and place them, many in each call, without the GIL.
 *
 * library.py loads this. The caller owns all memory, and passes addresses as integers. A function leaves whatever it cannot
 * treat, and reports it; Python then does the same work, and words the errors. Decoders are functions of the libraries that
 * Python calls, too. The headers are compiled together, in an order in which each needs only those before it. */
#define _GNU_SOURCE
#define _FILE_OFFSET_BITS 64
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/magic.h>
#include <sys/vfs.h>
#endif

/* Elements, numbers, and what Python describes a read by. */
#include "conversions.h"
#include "steps.h"
#include "numbers.h"
#include "crc32c.h"
#include "job.h"

/* Reading: decode chunks, place their elements, read files, and share the work among threads. */
#include "codecs.h"
#include "boxes.h"
#include "read_state.h"
#include "files.h"
#include "place_rows.h"
#include "read_rows.h"
#include "parts.h"
#include "contexts.h"
#include "read_threads.h"

/* Planning: which chunks are read, and where they are. */
#include "look_up.h"
#include "read_box.h"

/* Writing: chunks are gathered from an array, encoded, and written to objects. A file is only replaced by a complete one. */
#include "write_state.h"
#include "stored_object.h"
#include "encode.h"
#include "put_object.h"
#include "write_threads.h"

#include "layout.h"
