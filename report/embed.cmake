# SPDX-License-Identifier: Apache-2.0
# Writes a C++ source with the bytes of files, each a std::string_view:
#   cmake -DOUTPUT=page_files.cpp -DHEADER=page_files.hpp -DNAMESPACE=a::b -DFILES=style.css,start.js -P embed.cmake
# File `style.css` becomes `style_css`, which HEADER declares. Any content is taken over unchanged: bytes are
# written as numbers, because a compiler may limit the length of a string literal (65,536 bytes in MSVC).
string(REPLACE "," ";" FILES "${FILES}")
set(text "// Written by embed.cmake; edit the files that it names.\n#include \"${HEADER}\"\n\nnamespace ${NAMESPACE} {\n")
foreach(file IN LISTS FILES)
  file(READ "${file}" hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${hex}")
  string(REGEX REPLACE "('[^']*','[^']*','[^']*','[^']*','[^']*','[^']*','[^']*','[^']*',)" "\\1\n" bytes "${bytes}")
  get_filename_component(name "${file}" NAME)
  string(MAKE_C_IDENTIFIER "${name}" name)
  # The zero at the end is no part of the file: an array must have an element, an empty file has none.
  string(APPEND text "\nstatic const char ${name}_bytes[] = {\n${bytes}'\\0'};\n"
                     "const std::string_view ${name}{${name}_bytes, sizeof(${name}_bytes) - 1};\n")
endforeach()
string(APPEND text "\n}  // namespace ${NAMESPACE}\n")
file(WRITE "${OUTPUT}" "${text}")
