/* SPDX-License-Identifier: Apache-2.0 */
/* The name under which the library of the kernels is opened: before 1.0 both numbers are of the interface. */
#ifndef CVY_GPU_LIBRARY_H
#define CVY_GPU_LIBRARY_H

#include <covey.h>

#define CVY_GPU_TEXT_OF(number) #number
#define CVY_GPU_TEXT(number) CVY_GPU_TEXT_OF(number)
#define CVY_GPU_LIBRARY "libcovey_cuda.so." CVY_GPU_TEXT(COVEY_VERSION_MAJOR) "." CVY_GPU_TEXT(COVEY_VERSION_MINOR)

#endif
