// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A folder for pages, and what every page must be.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "belay/report/page.hpp"

namespace report_test {

namespace files = std::filesystem;

struct folder {
  std::string path = (files::temp_directory_path() / ("belay_page_" + std::to_string(::getpid()))).string();
  folder() { files::remove_all(path); }
  folder(const folder&) = delete;
  folder& operator=(const folder&) = delete;
  ~folder() { files::remove_all(path); }
};

inline std::string content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

template <class Page>
void check_form(const Page& page) {
  CHECK(page.starts_with("<!DOCTYPE html>"));
  CHECK(page.ends_with("</html>\n"));
  CHECK(page.find("<script") == std::string::npos);
  CHECK(page.find("http:") == std::string::npos);
  CHECK(page.find("https:") == std::string::npos);
  CHECK(page.find("url(") == std::string::npos);
  CHECK(page.find("nan") == std::string::npos);
  CHECK(count(page, "<svg") == count(page, "</svg>"));
  CHECK(count(page, "<div") == count(page, "</div>"));
}

// Never the time for a second page.
struct stopped_clock {
  static std::int64_t now() noexcept { return 1; }
  static void sleep(std::int64_t) noexcept {}
};
// Always.
struct leaping_clock {
  inline static thread_local std::int64_t at = 0;
  static std::int64_t now() noexcept { return at += belay::report_page::nanoseconds_between_pages; }
  static void sleep(std::int64_t) noexcept {}
};

}  // namespace report_test
