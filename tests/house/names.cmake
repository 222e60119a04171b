# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Names that say too little by themselves. No type of a header, an example, a benchmark or a test, nested ones and aliases
# included, has one of the first list alone: a compound (exit_kind) says what it is the kind of. No function of a
# namespace has one of either list: a user's own `send`, or the system's, would be meant as well. Members may have them,
# since their object says the rest.
cmake_minimum_required(VERSION 3.25)
set(types "entry|kind|place|range|state|slot|kept|page|part")
set(functions "make|report|read|send|${types}")
set(attributes "(alignas\\([^)]*\\) *|\\[\\[[^]]*\\]\\] *|BELAY_[A-Z_]+ +)*")
set(opens "(^|[^a-zA-Z0-9_])(struct|class|union|enum|enum class|enum struct|using|concept) +${attributes}(${types})")

# Adds to <out> the names in the sources below <root> that are not allowed. What is not indented is a namespace's.
function(find_violations root out)
  set(found "")
  file(GLOB_RECURSE headers RELATIVE "${root}" "${root}/*.hpp" "${root}/*.ipp" "${root}/*.cuh" "${root}/*.cpp"
    "${root}/*.cu")
  if(root MATCHES "/tests$")  # compile_fail has users' programs, and cuda those of a card, which nothing includes
    list(FILTER headers EXCLUDE REGEX "^(compile_fail|cuda)/")
  endif()
  foreach(header IN LISTS headers)
    # Behind the name stands a body, a base, `final`, the type of an alias, or the end of the line; a semicolon, which
    # `using` may have before it too, ends a declaration.
    file(STRINGS "${root}/${header}" lines REGEX "${opens} *($|[:{=]|final|//|requires)")
    foreach(line IN LISTS lines)
      string(STRIP "${line}" line)
      if(NOT line MATCHES "^//")
        list(APPEND found "${header}: a type: ${line}")
      endif()
    endforeach()
    file(STRINGS "${root}/${header}" lines REGEX "${opens} *;|^ *typedef .*[ *&](${types}) *;|^ *} *(${types}) *;")
    foreach(line IN LISTS lines)
      string(STRIP "${line}" line)
      if(line MATCHES "^(struct|class|union|enum|typedef|template)")
        list(APPEND found "${header}: a type: ${line}")
      endif()
    endforeach()
    # A return type stands before the name; an indented line continues a declaration or is in a class.
    file(STRINGS "${root}/${header}" lines REGEX "^([a-zA-Z\\[][^=()/\"]*[ *&>])(${functions})\\(")
    foreach(line IN LISTS lines)
      if(NOT line MATCHES "^(return|using|friend) ")
        list(APPEND found "${header}: a function of a namespace: ${line}")
      endif()
    endforeach()
  endforeach()
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

foreach(root include examples bench tests)
  find_violations("${source_dir}/${root}" violations)
  if(violations)
    list(JOIN violations "\n  " text)
    message(FATAL_ERROR "names that say too little in ${root}:\n  ${text}")
  endif()
endforeach()

# The test must be able to fail: each of these lines is a mistake, and the others are none.
set(wrong "struct entry {" "  enum class kind : unsigned char { a }" "  struct slot" "  using place = int" "  class state final {"
  "template <class T> struct range {" "  enum kind { a, b }" "  struct alignas(64) slot {" "  template <class T> class part : public T {"
  "  enum class kind" "concept page = true" "  struct [[nodiscard]] kept {  // alone" "  typedef int place\\\;" "struct state\\\;"
  "void send(int to) {" "[[nodiscard]] inline std::vector<int> read(int from)" "BELAY_DECL group& make(int ranks)"
  "constexpr auto report(const T& what) {" "inline int place(int of) {")
set(right "struct record_entry {" "  enum class exit_kind { a }" "  int place = 0\\\;" "  kind_type kind() const {" "// struct entry {"
  "  void send(int to) {" "  [[nodiscard]] static mailbox make(int ranks)" "BELAY_DECL bool mailbox::send(int to) {"
  "  return kept{1}\\\;" "  template <class Part> void part(Part& state)" "using belay::range_of\\\;" "  struct slots {"
  "inline int read_once(int from) {" "  const auto read = [](int x) {" "  ::read(file, to, 1)\\\;" "void send_to(int to) {")
foreach(list IN ITEMS wrong right)
  set(number 0)
  foreach(line IN LISTS ${list})
    math(EXPR number "${number} + 1")
    file(REMOVE_RECURSE "${work_dir}/planted")
    file(WRITE "${work_dir}/planted/belay/core/planted.hpp" "\n${line}\n\n")
    find_violations("${work_dir}/planted" violations)
    list(LENGTH violations count)
    if(list STREQUAL wrong AND NOT count EQUAL 1)
      message(SEND_ERROR "found ${count} times: ${line}")
    elseif(list STREQUAL right AND count)
      message(SEND_ERROR "wrongly called a name that says too little: ${line}")
    endif()
  endforeach()
endforeach()
