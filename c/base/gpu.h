/* What a GPU must have: checked by whoever opens one, and the most that kernels use. */
#ifndef EPW_BASE_GPU_H
#define EPW_BASE_GPU_H

#define EPW_GPU_SHARE (114u * 1024) /* of an SM's shared memory, the bytes that a block takes at most */

#endif
