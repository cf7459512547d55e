/* What a GPU must provide: checked when a GPU is opened, and not exceeded by the kernels. */
#ifndef EPW_BASE_GPU_H
#define EPW_BASE_GPU_H

#define EPW_GPU_SHARE (114u * 1024) /* the most bytes of an SM's shared memory that a block uses */

#endif
