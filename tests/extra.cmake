# SPDX-License-Identifier: Apache-2.0
# Tests that are not doctest programs: what must not compile, projects that use the library, and the
# scripts that check the tree.
find_package(Python3 COMPONENTS Interpreter REQUIRED)

file(GLOB must_not_compile CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/compile_fail/*.cpp)
foreach(source IN LISTS must_not_compile)
  get_filename_component(name ${source} NAME_WE)
  add_test(NAME compile_fail.${name}
    COMMAND ${CMAKE_COMMAND} -DCOMPILER=${CMAKE_CXX_COMPILER} -DFILE=${source}
            -DINCLUDE=${PROJECT_SOURCE_DIR}/include -P ${CMAKE_CURRENT_SOURCE_DIR}/compile_fail/check.cmake)
endforeach()

foreach(consumer find_package add_subdirectory fetch_content include_path)
  add_test(NAME consumer.${consumer}
    COMMAND ${CMAKE_COMMAND} -DCONSUMER=${consumer} -DSLIMPACK=${PROJECT_SOURCE_DIR} -DBUILT=${PROJECT_BINARY_DIR}
            -DWORK=${CMAKE_CURRENT_BINARY_DIR}/consumer/${consumer} -DGENERATOR=${CMAKE_GENERATOR}
            -DCOMPILER=${CMAKE_CXX_COMPILER} -P ${CMAKE_CURRENT_SOURCE_DIR}/consumer/check.cmake)
endforeach()
set_tests_properties(consumer.find_package PROPERTIES COST 70)

add_test(NAME scripts.layers COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/check_layers.py)
add_test(NAME scripts.layers_test COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/scripts/layers_test.py)
add_test(NAME scripts.public_names COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/public_names.py --check)
add_test(NAME scripts.public_names_test COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/scripts/public_names_test.py)
add_test(NAME scripts.deps_test COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/scripts/deps_test.py)
add_test(NAME scripts.readme COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/check_readme.py)
add_test(NAME scripts.cuda_report_test COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/scripts/cuda_report_test.py)
add_test(NAME scripts.cuda_budget_test COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/scripts/cuda_budget_test.py)
add_test(NAME scripts.evaluation_test COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/scripts/evaluation_test.py)
add_test(NAME scripts.readme_test COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/scripts/readme_test.py)
add_test(NAME scripts.words_test COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/scripts/words_test.py)
add_test(NAME scripts.words COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/check_words.py)

include(determinism/determinism.cmake)
