# The few CMake helpers of this project. Each folder lists its sources by name and its
# dependencies as in MODULE_NOTES.md; warnings are errors everywhere.

set(QUIRE_WARNINGS -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Werror)

# Instruction sets that CPU kernels are compiled for. `avx512sim` is the AVX-512 source run through
# SIMDe on AVX2, so that it is tested on machines without AVX-512; it is linked into tests only.
set(QUIRE_ISA_portable)
set(QUIRE_ISA_avx2 -mavx2 -mfma -mf16c -mbmi -mbmi2)
set(QUIRE_ISA_avx512 ${QUIRE_ISA_avx2} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni
                     -mavx512bf16 -mavx512vbmi
                     # GCC 12's own AVX-512 headers give these warnings (GCC bug 105593).
                     -Wno-uninitialized -Wno-maybe-uninitialized)
set(QUIRE_ISA_avx512sim ${QUIRE_ISA_avx2} -DQUIRE_AVX512_SIMULATED=1)

function(_quire_common target)
  target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR})
  target_compile_options(${target} PRIVATE ${QUIRE_WARNINGS})
endfunction()

# quire_library(NAME n SRCS ... DEPS ... [SIMD_SRCS ...])
# Each file in SIMD_SRCS is compiled once per instruction set, with QUIRE_ISA set to its name
# (a namespace: see kernels/common/isa.h). The simulated variant becomes the library n_sim.
function(quire_library)
  cmake_parse_arguments(A "" "NAME" "SRCS;DEPS;SIMD_SRCS" ${ARGN})
  add_library(${A_NAME} STATIC ${A_SRCS})
  add_library(quire::${A_NAME} ALIAS ${A_NAME})
  set_target_properties(${A_NAME} PROPERTIES LINKER_LANGUAGE CXX)
  _quire_common(${A_NAME})
  target_link_libraries(${A_NAME} PUBLIC ${A_DEPS})
  if(A_SIMD_SRCS)
    # Checked builds take minutes for unrolled kernels at -O3.
    set(optimise -O3)
    if(QUIRE_SANITIZE)
      set(optimise -O1)
    endif()
    foreach(isa portable avx2 avx512)
      add_library(${A_NAME}_${isa} OBJECT ${A_SIMD_SRCS})
      _quire_common(${A_NAME}_${isa})
      target_compile_options(${A_NAME}_${isa} PRIVATE ${optimise} ${QUIRE_ISA_${isa}})
      target_compile_definitions(${A_NAME}_${isa} PRIVATE QUIRE_ISA=${isa})
      target_link_libraries(${A_NAME}_${isa} PUBLIC ${A_DEPS})
      target_sources(${A_NAME} PRIVATE $<TARGET_OBJECTS:${A_NAME}_${isa}>)
    endforeach()
    if(QUIRE_BUILD_TESTS)
      add_library(${A_NAME}_sim STATIC ${A_SIMD_SRCS})
      add_library(quire::${A_NAME}_sim ALIAS ${A_NAME}_sim)
      _quire_common(${A_NAME}_sim)
      # -O1: SIMDe code is slow to optimise and only ever tested.
      target_compile_options(${A_NAME}_sim PRIVATE -O1 -w -Wno-psabi ${QUIRE_ISA_avx512sim})
      target_compile_definitions(${A_NAME}_sim PRIVATE QUIRE_ISA=avx512sim)
      target_link_libraries(${A_NAME}_sim PUBLIC ${A_DEPS})
    endif()
  endif()
endfunction()

# quire_executable(NAME n SRCS ... DEPS ...)
function(quire_executable)
  cmake_parse_arguments(A "" "NAME" "SRCS;DEPS" ${ARGN})
  add_executable(${A_NAME} ${A_SRCS})
  _quire_common(${A_NAME})
  target_link_libraries(${A_NAME} PRIVATE ${A_DEPS})
endfunction()

# quire_test(NAME n SRCS ... DEPS ... [LABELS ...] [ARGS ...] [TIMEOUT seconds] [NO_MAIN])
# One ctest entry a binary; gtest reports the cases.
function(quire_test)
  if(NOT QUIRE_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(A "NO_MAIN" "NAME;TIMEOUT" "SRCS;DEPS;LABELS;ARGS" ${ARGN})
  add_executable(${A_NAME} ${A_SRCS})
  _quire_common(${A_NAME})
  target_compile_definitions(${A_NAME} PRIVATE QUIRE_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
                                               QUIRE_BINARY_DIR="${CMAKE_BINARY_DIR}")
  target_link_libraries(${A_NAME} PRIVATE ${A_DEPS} GTest::gtest GTest::gmock)
  if(NOT A_NO_MAIN)
    target_link_libraries(${A_NAME} PRIVATE GTest::gtest_main)
  endif()
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 300)
  endif()
  set_target_properties(${A_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${A_NAME} COMMAND ${A_NAME} ${A_ARGS})
  set_tests_properties(${A_NAME} PROPERTIES TIMEOUT ${A_TIMEOUT} LABELS "${A_LABELS}")
endfunction()

# quire_bench(NAME n SRCS ... DEPS ...): a Google Benchmark binary in build/<preset>/bench.
function(quire_bench)
  if(NOT QUIRE_BUILD_BENCHES)
    return()
  endif()
  cmake_parse_arguments(A "" "NAME" "SRCS;DEPS" ${ARGN})
  add_executable(${A_NAME} ${A_SRCS})
  _quire_common(${A_NAME})
  target_link_libraries(${A_NAME} PRIVATE ${A_DEPS} benchmark::benchmark)
  set_target_properties(${A_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
endfunction()
