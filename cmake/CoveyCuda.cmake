# SPDX-License-Identifier: Apache-2.0
# Is there a compiler for the kernels? nvcc is often installed off PATH.

option(COVEY_CUDA "Build the kernels, where nvcc is there" ON)
find_program(COVEY_NVCC nvcc PATHS /usr/local/cuda/bin /opt/cuda/bin)
set(COVEY_HAVE_CUDA OFF)
if(COVEY_NVCC AND COVEY_CUDA AND NOT COVEY_SANITIZE)
	if(NOT CMAKE_CUDA_ARCHITECTURES)
		set(CMAKE_CUDA_ARCHITECTURES 90)
	endif()
	set(CMAKE_CUDA_COMPILER ${COVEY_NVCC})
	enable_language(CUDA)
	set(COVEY_HAVE_CUDA ON)
elseif(COVEY_NVCC)
	covey_part(kernels "left out: not wanted in this build (nvcc: ${COVEY_NVCC})")
else()
	covey_part(kernels "left out: no nvcc")
endif()
