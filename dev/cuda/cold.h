// cold.h: an empty L2 cache before a timing, by reading several times what it holds. Writing would
// empty it, too, but what was written goes to memory later, within the time.
#pragma once
#ifdef EMULATED
enum { COLD_BYTES = 1 << 16 };
#else
enum { COLD_BYTES = 256 << 20 };
#endif
enum { COLD_PARTS = 1024 };
static float *cold = NULL;
static double *cold_sums;
static size_t cold_bytes;

static void cold_alloc(void) {
    size_t l2_bytes = COLD_BYTES > 1 << 20 ? (size_t)device.l2CacheSize : 0;
    cold_bytes = round_up(max_size(COLD_BYTES, 3 * l2_bytes), COLD_PARTS * sizeof(double));
    cold = (float *)dev_alloc(cold_bytes, "the L2 cache");
    cold_sums = (double *)dev_alloc(COLD_PARTS * sizeof(double), "the L2 cache");
}
static void cold_read(void) {
    sum_squares(cold_sums, cold, COLD_PARTS, cold_bytes / sizeof(float) / COLD_PARTS);
}
