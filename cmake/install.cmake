# What `make install` puts where. The list of what was installed is kept by CMake in
# install_manifest.txt, from which `make uninstall` works.
install(TARGETS tierce_executable RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS tierce_shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET tierce_nixl_plugin) # optional: not built by those who build single targets
    install(TARGETS tierce_nixl_plugin OPTIONAL
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/tierce)
endif()
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/tierce DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
    FILES_MATCHING PATTERN "*.h" PATTERN "*.def")
install(FILES ${CMAKE_BINARY_DIR}/include/tierce/version.h
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tierce)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# Relative to the .pc file where that works, so that a tree that was moved still does.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
    set(TIERCE_PC_LIBDIR "${CMAKE_INSTALL_LIBDIR}")
else()
    set(TIERCE_PC_LIBDIR "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
endif()
if(IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
    set(TIERCE_PC_INCLUDEDIR "${CMAKE_INSTALL_INCLUDEDIR}")
else()
    set(TIERCE_PC_INCLUDEDIR "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
configure_file(cmake/tierce.pc.in ${CMAKE_BINARY_DIR}/tierce.pc.in @ONLY)
# The prefix is known only when it is installed (cmake --install --prefix).
install(CODE "
    set(prefix \"\${CMAKE_INSTALL_PREFIX}\")
    file(READ \"${CMAKE_BINARY_DIR}/tierce.pc.in\" text)
    string(REPLACE \"{{prefix}}\" \"\${prefix}\" text \"\${text}\")
    file(WRITE \"${CMAKE_BINARY_DIR}/tierce.pc\" \"\${text}\")")
install(FILES ${CMAKE_BINARY_DIR}/tierce.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# Manual pages from the help texts, in man(7) macros.
file(STRINGS ${CMAKE_SOURCE_DIR}/src/cli/commands.def rows REGEX "^TIERCE_COMMAND")
set(pages tierce)
foreach(row IN LISTS rows)
    string(REGEX REPLACE "^TIERCE_COMMAND\\([a-z_]+, \"([a-z-]+)\".*" "tierce-\\1" page "${row}")
    list(APPEND pages ${page})
endforeach()
set(TIERCE_MAN "")
foreach(page IN LISTS pages)
    string(REGEX REPLACE "^tierce-?" "" command ${page})
    set(file ${CMAKE_BINARY_DIR}/man/${page}.1)
    add_custom_command(OUTPUT ${file} DEPENDS tierce_executable VERBATIM
        COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/man
        COMMAND $<TARGET_FILE:tierce_executable> help --man ${command} > ${file})
    list(APPEND TIERCE_MAN ${file})
endforeach()
# Nobody installs a build with a sanitizer, in which each page takes three times as long.
if(TIERCE_SANITIZE)
    add_custom_target(tierce_man DEPENDS ${TIERCE_MAN})
else()
    add_custom_target(tierce_man ALL DEPENDS ${TIERCE_MAN})
endif()
install(FILES ${TIERCE_MAN} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)

# Completion of bash for the command.
install(FILES ${CMAKE_SOURCE_DIR}/packaging/completion/tierce
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)

# Grafana dashboards, Prometheus' alert rules, and systemd units for the installed executable.
install(DIRECTORY ${CMAKE_SOURCE_DIR}/web/grafana DESTINATION ${CMAKE_INSTALL_DATADIR}/tierce
    FILES_MATCHING PATTERN "*.json")
install(DIRECTORY ${CMAKE_SOURCE_DIR}/web/prometheus DESTINATION ${CMAKE_INSTALL_DATADIR}/tierce)
install(CODE "
    file(GLOB units \"${CMAKE_SOURCE_DIR}/packaging/*.service\")
    foreach(unit IN LISTS units)
        get_filename_component(name \"\${unit}\" NAME)
        file(READ \"\${unit}\" text)
        string(REPLACE \"/usr/local/bin/\" \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/\" text \"\${text}\")
        file(WRITE \"${CMAKE_BINARY_DIR}/units/\${name}\" \"\${text}\")
        file(INSTALL \"${CMAKE_BINARY_DIR}/units/\${name}\"
            DESTINATION \"\${CMAKE_INSTALL_PREFIX}/lib/systemd/system\")
    endforeach()")
