# Turns files into a C source: cmake -DOUT=page.c -DNAME=x -DFILES=a;b -P embed.cmake gives
# `const unsigned char x[]`, the files one after the other with a NUL behind, and `const size_t
# x_size`, without the NUL.
set(bytes "")
foreach(file IN LISTS FILES)
    file(READ ${file} hex HEX)
    string(APPEND bytes "${hex}")
endforeach()
string(LENGTH "${bytes}" digits)
math(EXPR size "${digits} / 2")
string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${OUT}
    "#include \"optimizer/report_page.h\"\n"
    "const unsigned char ${NAME}[] = {\n${bytes}0};\nconst size_t ${NAME}_size = ${size};\n")
