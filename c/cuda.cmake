# EPW_CUDA=ON: the kernels, the static CUDA runtime, and the C sources that use them, with the flags of build.rs.
# nvcc is run by custom commands and not as a language of CMake's, which would choose architectures and runtime by
# itself and look for a GPU.
#
# Sets epw_kernels (object files), epw_cuda_include and epw_cuda_libraries (what programs link).

set(EPW_CUDA_ARCHS "$ENV{EPWIRE_CUDA_ARCHS}" CACHE STRING
    "Compute capabilities, comma-separated; empty: 90,100, as far as the toolkit knows them")

set(cuda_homes $ENV{CUDA_HOME} $ENV{CUDA_PATH} ${CUDAToolkit_ROOT} /usr/local/cuda)
if(NOT "$ENV{NVCC}" STREQUAL "")
    find_program(EPW_NVCC "$ENV{NVCC}" DOC "The CUDA compiler")
else()
    find_program(EPW_NVCC nvcc HINTS ${CUDAToolkit_ROOT}/bin $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin
        PATHS /usr/local/cuda/bin DOC "The CUDA compiler")
endif()
if(NOT EPW_NVCC)
    message(FATAL_ERROR "EPW_CUDA needs nvcc, which is neither at NVCC, in CUDA_HOME, CUDA_PATH, CUDAToolkit_ROOT or "
        "PATH, nor in /usr/local/cuda. Install a CUDA toolkit, 12.0 or newer, and set CUDA_HOME to its folder")
endif()
get_filename_component(nvcc "${EPW_NVCC}" REALPATH)
get_filename_component(cuda_root "${nvcc}/../.." ABSOLUTE)
set(cuda_targets targets/x86_64-linux)
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
    set(cuda_targets targets/sbsa-linux targets/aarch64-linux)
endif()
set(include_suffixes include)
set(library_suffixes lib64 lib)
foreach(target ${cuda_targets})
    list(APPEND include_suffixes ${target}/include)
    list(APPEND library_suffixes ${target}/lib)
endforeach()
find_path(epw_cuda_include cudaTypedefs.h HINTS ${cuda_root} ${cuda_homes} PATH_SUFFIXES ${include_suffixes})
find_library(epw_cudart libcudart_static.a HINTS ${cuda_root} ${cuda_homes} PATH_SUFFIXES ${library_suffixes})
if(NOT epw_cuda_include OR NOT epw_cudart)
    message(FATAL_ERROR "The CUDA toolkit of ${EPW_NVCC} lacks cudaTypedefs.h (${epw_cuda_include}) or "
        "libcudart_static.a (${epw_cudart}): install its development files, and set CUDA_HOME to its folder")
endif()
set(epw_cuda_libraries ${epw_cudart} dl pthread rt)

# Machine code for each architecture, and PTX of the newest, which drivers translate for newer GPUs.
execute_process(COMMAND ${EPW_NVCC} --list-gpu-code OUTPUT_VARIABLE known RESULT_VARIABLE failed)
if(failed)
    message(FATAL_ERROR "${EPW_NVCC} --list-gpu-code fails: ${failed}")
endif()
string(REGEX MATCHALL "[0-9]+" known "${known}")
string(REPLACE "," ";" wanted "${EPW_CUDA_ARCHS}")
set(archs "")
foreach(arch ${wanted})
    string(REGEX REPLACE "[af]$" "" plain "${arch}")
    if(NOT plain IN_LIST known OR plain LESS 90)
        message(FATAL_ERROR "EPW_CUDA_ARCHS names ${arch}; must be from 90 on and one of those that ${EPW_NVCC} "
            "knows: ${known}")
    endif()
    list(APPEND archs ${arch})
endforeach()
if(NOT wanted)
    foreach(arch 90 100)
        if(arch IN_LIST known)
            list(APPEND archs ${arch})
        endif()
    endforeach()
endif()
if(NOT archs)
    message(FATAL_ERROR "${EPW_NVCC} is too old: it knows neither 90 nor 100; CUDA 12.0 does")
endif()
if(CMAKE_VERSION VERSION_LESS 3.20)
    message(FATAL_ERROR "EPW_CUDA needs CMake 3.20, this is ${CMAKE_VERSION}")
endif()
list(SORT archs COMPARE NATURAL)
list(GET archs -1 newest)
set(gencode "")
foreach(arch ${archs})
    if(arch STREQUAL newest)
        list(APPEND gencode -gencode=arch=compute_${arch},code=[sm_${arch},compute_${arch}])
    else()
        list(APPEND gencode -gencode=arch=compute_${arch},code=sm_${arch})
    endif()
endforeach()
message(STATUS "epwire: CUDA kernels for ${archs} by ${EPW_NVCC}")

# Paths and arguments are those of build.rs: then a compiler cache has for one what the other has compiled.
get_filename_component(root ${PROJECT_SOURCE_DIR}/.. ABSOLUTE)
set(kernels ${root}/kernels)

# Object files of all .cu of a folder, by its absolute path, to the list named `objects`.
function(epw_compile_kernels objects folder)
    file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.cu)
    get_filename_component(group ${folder} NAME)
    set(made "")
    foreach(source ${sources})
        get_filename_component(name ${source} NAME_WE)
        set(object ${PROJECT_BINARY_DIR}/${group}/${name}.o)
        add_custom_command(OUTPUT ${object} DEPENDS ${source} DEPFILE ${object}.d VERBATIM
            COMMENT "Compiling the kernels of ${name}.cu"
            COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/${group}
            COMMAND ${EPW_NVCC} -c -std=c++20 -O3 --threads=2 ${gencode} --fmad=false
                -Xcompiler -fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics
                -I${root} -I${root}/c -I${root}/c/include
                -MD -MF ${object}.d -MT ${object} ${source} -o ${object})
        list(APPEND made ${object})
    endforeach()
    set_source_files_properties(${made} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
    set(${objects} ${made} PARENT_SCOPE)
endfunction()

epw_compile_kernels(epw_kernels ${kernels})
