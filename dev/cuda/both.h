// both.h: both programs in one, to compare them: train_gpt.cu, and train_gpt.c in namespace cpu, in
// fp64. The CPU's comes first: what follows it cannot hide in it. The headers come before, as they
// belong into no namespace.
#pragma once
#define GPT_NO_MAIN
#include <assert.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef USE_MPI
#include <mpi.h>
#endif
#undef PRECISION_BF16 // what train_gpt.cu does unless told otherwise
#ifdef __CUDACC__
#pragma nv_diagnostic push
#pragma nv_diag_suppress 1675 // it does not know #pragma GCC unroll
#endif
namespace cpu {
#define PRECISION_FP64
#include "../../train_gpt.c"
#undef PRECISION_FP64
}
#ifdef __CUDACC__
#pragma nv_diagnostic pop
#endif
#undef PROGRAM_NAME
#undef PRECISION_NAME
#include "../../train_gpt.cu"
// Half an ulp of 1: what an operation in fp32, or a store in floatX, may be off by.
static const double unit = 0x1p-24;
static const double stored = sizeof(floatX) == 4 ? 0x1p-24 : PRECISION_NAME[0] == 'b' ? 0x1p-8
                                                                                     : 0x1p-11;
