/* SPDX-License-Identifier: Apache-2.0 */
/* The names under which the libraries of the kernels are opened: before 1.0 both numbers are of the interface. */
#ifndef CVY_GPU_LIBRARY_H
#define CVY_GPU_LIBRARY_H

#include <covey.h>

#define CVY_GPU_TEXT_OF(number) #number
#define CVY_GPU_TEXT(number) CVY_GPU_TEXT_OF(number)
#define CVY_GPU_NUMBERS CVY_GPU_TEXT(COVEY_VERSION_MAJOR) "." CVY_GPU_TEXT(COVEY_VERSION_MINOR)
#define CVY_GPU_LIBRARY "libcovey_cuda.so." CVY_GPU_NUMBERS
#define CVY_GPU_TOOL_LIBRARY "libcovey_cuda_tools.so." CVY_GPU_NUMBERS

#endif
