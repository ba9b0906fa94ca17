# tierce_embed(LIST HEADER NAME FILE...) turns files into a C source, which it appends to LIST:
# `const unsigned char NAME[]`, the files one after the other with a NUL behind, and `const size_t
# NAME_size`, without the NUL. HEADER declares both. At build time the same file does it, as a script.
if(NOT CMAKE_SCRIPT_MODE_FILE)
    set(TIERCE_EMBED ${CMAKE_CURRENT_LIST_FILE})
    function(tierce_embed list header name)
        set(out ${CMAKE_CURRENT_BINARY_DIR}/${name}.c)
        add_custom_command(OUTPUT ${out} VERBATIM
            COMMAND ${CMAKE_COMMAND} -DOUT=${out} -DHEADER=${header} -DNAME=${name}
                "-DFILES=${ARGN}" -P ${TIERCE_EMBED}
            DEPENDS ${ARGN} ${TIERCE_EMBED})
        set(${list} ${${list}} ${out} PARENT_SCOPE)
    endfunction()
    return()
endif()

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
    "#include \"${HEADER}\"\n"
    "const unsigned char ${NAME}[] = {\n${bytes}0};\nconst size_t ${NAME}_size = ${size};\n")
