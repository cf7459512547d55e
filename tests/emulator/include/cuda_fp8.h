// Nothing of it is used: kernels convert by the instructions of kernels/ptx/number.cuh.
#pragma once
