// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/train/safetensors.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

#include "unit/report/support/file_size_limit.hpp"

namespace {

namespace st = belay::safetensors;

struct folder {
  std::string path = [] {
    char name[] = "/tmp/belay_safetensors_XXXXXX";
    return std::string(::mkdtemp(name));
  }();
  ~folder() { std::filesystem::remove_all(path); }
  [[nodiscard]] std::string file(const char* name) const { return path + "/" + name; }
  [[nodiscard]] std::size_t entries() const {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(path), std::filesystem::directory_iterator()));
  }
};

std::string content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<st::declaration> small_model() {
  return {{"embed", st::stored_type::f32, {5, 3}},
          {"empty", st::stored_type::f32, {0, 7}},
          {"scale", st::stored_type::f64, {}},
          {"codes", st::stored_type::u8, {3}},
          {"half \"quoted\"\n", st::stored_type::bf16, {2}}};
}

void write_small_model(const std::string& path) {
  st::writer out(path, small_model());
  std::vector<float> embed(15);
  std::iota(embed.begin(), embed.end(), 0.5F);
  const double scale = 3.25;
  const std::vector<std::uint8_t> codes{7, 8, 9};
  const std::vector<belay::bf16> half{belay::bf16(1.5F), belay::bf16(-2.0F)};
  out.write<belay::bf16>("half \"quoted\"\n", 0, half);
  out.write<float>("embed", 7, std::span<const float>(embed).subspan(7));
  out.write<double>("scale", 0, std::span(&scale, 1));
  out.write<float>("empty", 0, {});
  out.write_bytes("codes", 0, std::as_bytes(std::span(codes)));
  out.write<float>("embed", 0, std::span<const float>(embed).first(7));
  out.commit();
}

// The machine's files, of which one kind of call stutters or fails.
struct faulty_files : belay::posix_files {
  static inline int interrupt = 0;     // as many calls are interrupted before they do anything
  static inline bool trickle = false;  // a call moves one byte
  static inline bool no_sync = false;
  static inline bool no_rename = false;

  [[nodiscard]] static bool interrupted() noexcept {
    errno = EINTR;
    return interrupt > 0 && interrupt-- > 0;
  }
  [[nodiscard]] static ssize_t read_at(int unique_fd, void* to, std::size_t bytes, off_t offset) noexcept {
    if (interrupted()) return -1;
    return posix_files::read_at(unique_fd, to, trickle ? 1 : bytes, offset);
  }
  [[nodiscard]] static ssize_t write_at(int unique_fd, const void* from, std::size_t bytes, off_t offset) noexcept {
    if (interrupted()) return -1;
    return posix_files::write_at(unique_fd, from, trickle ? 1 : bytes, offset);
  }
  [[nodiscard]] static int sync(int unique_fd) noexcept {
    if (interrupted()) return -1;
    errno = EIO;
    return no_sync ? -1 : posix_files::sync(unique_fd);
  }
  [[nodiscard]] static int rename(const char* from, const char* to) noexcept {
    errno = EACCES;
    return no_rename ? -1 : posix_files::rename(from, to);
  }
};

}  // namespace

TEST_CASE("a model comes back as it was written, whole and by ranges") {
  folder dir;
  write_small_model(dir.file("m"));
  CHECK(dir.entries() == 1);
  const st::reader in(dir.file("m"));
  REQUIRE(in.tensors().size() == 5);
  CHECK(in.metadata() == st::metadata_list{{"format", "pt"}});
  CHECK(in.tensor_named("embed").shape == std::vector<std::uint64_t>{5, 3});
  CHECK(in.tensor_named("scale").shape.empty());
  CHECK(in.tensor_named("empty").bytes() == 0);
  for (std::size_t first = 0; first <= 15; ++first) {
    for (std::size_t count = 0; first + count <= 15; ++count) {
      std::vector<float> part(count, -1.0F);
      in.read<float>("embed", first, part);
      for (std::size_t i = 0; i < count; ++i) CHECK(part[i] == 0.5F + static_cast<float>(first + i));
    }
  }
  double scale = 0;
  in.read<double>("scale", 0, std::span(&scale, 1));
  CHECK(scale == 3.25);
  std::vector<belay::bf16> half(2);
  in.read<belay::bf16>("half \"quoted\"\n", 0, half);
  CHECK(static_cast<float>(half[1]) == -2.0F);
  std::vector<std::uint8_t> codes(2);
  in.read_bytes("codes", 1, std::as_writable_bytes(std::span(codes)));
  CHECK(codes == std::vector<std::uint8_t>{8, 9});
  in.read<float>("empty", 0, {});
}

TEST_CASE("floating-point elements are read as another type, rounded where it is narrower") {
  folder dir;
  constexpr std::size_t count = 10'000;  // more than a piece
  {
    st::writer out(dir.file("m"), std::vector<st::declaration>{{"wide", st::stored_type::f32, {count}},
                                                               {"narrow", st::stored_type::bf16, {count}},
                                                               {"codes", st::stored_type::u8, {1}}});
    std::vector<float> wide(count);
    std::vector<belay::bf16> narrow(count);
    for (std::size_t i = 0; i < count; ++i) {
      wide[i] = 1.0F + static_cast<float>(i) / 1024;
      narrow[i] = belay::bf16(wide[i]);
    }
    out.write<float>("wide", 0, wide);
    out.write<belay::bf16>("narrow", 0, narrow);
    const std::byte code{7};
    out.write_bytes("codes", 0, std::span(&code, 1));
    out.commit();
  }
  const st::reader in(dir.file("m"));
  for (const std::size_t first : {std::size_t{0}, std::size_t{1}, count - 1, count}) {
    std::vector<belay::bf16> rounded(count - first), same(count - first);
    std::vector<float> widened(count - first);
    in.read_converted<belay::bf16>("wide", first, rounded);
    in.read_converted<belay::bf16>("narrow", first, same);
    in.read_converted<float>("narrow", first, widened);
    for (std::size_t i = 0; i < rounded.size(); ++i) {
      REQUIRE(rounded[i].bits() == same[i].bits());
      REQUIRE(widened[i] == static_cast<float>(same[i]));
    }
  }
  std::vector<float> one(1);
  CHECK_THROWS_WITH_AS(in.read_converted<float>("codes", 0, one), doctest::Contains("holds U8"), belay::file_error);
  CHECK_THROWS_AS(in.read_converted<float>("narrow", count, one), belay::usage_error);
}

TEST_CASE("the same declarations and values give the same bytes, and the data begins at a multiple of 8") {
  folder dir;
  write_small_model(dir.file("a"));
  write_small_model(dir.file("b"));
  const std::string bytes = content(dir.file("a"));
  CHECK(bytes == content(dir.file("b")));
  CHECK(static_cast<unsigned char>(bytes[0]) % 8 == 0);
  CHECK(bytes.substr(8, 39) == R"({"__metadata__":{"format":"pt"},"embed")");
  struct stat facts {};
  REQUIRE(::stat(dir.file("a").c_str(), &facts) == 0);
  CHECK((facts.st_mode & 0777U) == 0644U);
}

TEST_CASE("threads write their parts of one tensor at the same time") {
  folder dir;
  const std::size_t rows = 97;
  const std::size_t width = 31;
  {
    st::writer out(dir.file("m"), {{"w", st::stored_type::f32, {rows, width}}});
    std::vector<std::thread> ranks;
    for (std::size_t rank = 0; rank < 3; ++rank) {
      ranks.emplace_back([&, rank] {
        for (std::size_t row = rank; row < rows; row += 3) {
          const std::vector<float> values(width, static_cast<float>(row));
          out.write<float>("w", row * width, values);
        }
      });
    }
    for (std::thread& rank : ranks) rank.join();
    out.commit();
  }
  std::vector<float> all(rows * width);
  st::reader(dir.file("m")).read<float>("w", 0, all);
  for (std::size_t i = 0; i < all.size(); ++i) REQUIRE(all[i] == static_cast<float>(i / width));
}

TEST_CASE("a file without tensors is a file") {
  folder dir;
  st::writer(dir.file("m"), {}, {}).commit();
  CHECK(content(dir.file("m")) == std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
  CHECK(st::reader(dir.file("m")).tensors().empty());
}

TEST_CASE("a writer that is not committed leaves the old file and no temporary") {
  folder dir;
  std::ofstream(dir.file("m")) << "old";
  const std::vector<float> one{1.0F};
  {
    st::writer out(dir.file("m"), {{"w", st::stored_type::f32, {1}}});
    CHECK(dir.entries() == 2);
    out.write<float>("w", 0, one);
    SUBCASE("destroyed after the writes") {}
    SUBCASE("destroyed after finish") { out.finish(); }
    CHECK(content(dir.file("m")) == "old");
  }
  CHECK(content(dir.file("m")) == "old");
  CHECK(dir.entries() == 1);
}

TEST_CASE("a file's tensors are declared once, and written from spans that are const or not") {
  folder dir;
  const auto twice = [&] {
    st::writer out(dir.file("m"), {{"a", st::stored_type::f32, {4}}, {"a", st::stored_type::f32, {2}}});
  };
  CHECK_THROWS_WITH_AS(twice(), doctest::Contains("tensor a is declared twice"), belay::usage_error);
  std::vector<float> values(4, 1.0F);
  st::writer out(dir.file("m"), {{"a", st::stored_type::f32, {4}}});
  out.write("a", 0, std::span(values).first(1));
  out.write("a", 1, std::span<const float>(values).subspan(1));
  out.commit();
  CHECK(std::filesystem::exists(dir.file("m")));
}

TEST_CASE("a tensor that was not written, or written twice, keeps the file from being committed") {
  folder dir;
  const std::vector<float> values(4, 1.0F);
  st::writer out(dir.file("m"), {{"a", st::stored_type::f32, {4}}, {"b", st::stored_type::f32, {4}}});
  out.write<float>("a", 0, values);
  SUBCASE("missing") {
    out.write<float>("b", 0, std::span(values).first(3));
    CHECK_THROWS_WITH_AS(out.commit(), doctest::Contains("tensor b has 16 bytes, 12 were written"), belay::usage_error);
  }
  SUBCASE("twice") {
    out.write<float>("b", 0, values);
    out.write<float>("a", 3, std::span(values).first(1));
    CHECK_THROWS_WITH_AS(out.commit(), doctest::Contains("tensor a has 16 bytes, 20 were written"), belay::usage_error);
  }
  CHECK(!std::filesystem::exists(dir.file("m")));
}

TEST_CASE("a slip in a write or a read is a usage error and changes nothing") {
  folder dir;
  const std::vector<float> values(4, 1.0F);
  st::writer out(dir.file("m"), {{"a", st::stored_type::f32, {4}}});
  CHECK_THROWS_AS(out.write<float>("b", 0, values), belay::usage_error);
  CHECK_THROWS_WITH_AS(out.write<float>("a", 1, values), doctest::Contains("elements 1 to 5 of tensor a, which has 4"),
                       belay::usage_error);
  CHECK_THROWS_WITH_AS(out.write_bytes("a", 14, std::as_bytes(std::span(values)).first(3)),
                       doctest::Contains("bytes 14 to 17 of tensor a, which has 16"), belay::usage_error);
  CHECK_THROWS_AS(out.write<float>("a", ~std::uint64_t{0}, values), belay::usage_error);
  CHECK_THROWS_AS(out.write<double>("a", 0, std::vector<double>(2)), belay::usage_error);
  out.write<float>("a", 0, values);
  out.commit();
  CHECK_THROWS_AS(out.write<float>("a", 0, values), belay::usage_error);
  CHECK_THROWS_AS(out.commit(), belay::usage_error);
  const st::reader in(dir.file("m"));
  std::vector<float> into(2);
  CHECK_THROWS_AS(in.read<float>("a", 3, into), belay::usage_error);
  CHECK_THROWS_AS(in.read<float>("a", ~std::uint64_t{0}, into), belay::usage_error);
  std::vector<double> wide(2);
  CHECK_THROWS_WITH_AS(in.read<double>("a", 0, wide), doctest::Contains("holds F32, F64 was asked for"),
                       belay::file_error);
  CHECK_THROWS_WITH_AS(in.read<float>("z", 0, into), doctest::Contains("has no tensor z"), belay::file_error);
}

TEST_CASE("declarations that the reader would refuse are refused before a file exists") {
  folder dir;
  const auto refused = [&](std::vector<st::declaration> tensors) {
    CHECK_THROWS_AS(st::writer(dir.file("m"), tensors), belay::usage_error);
    CHECK(dir.entries() == 0);
  };
  refused({{"a", st::stored_type::f32, {1}}, {"a", st::stored_type::f32, {1}}});
  refused({{"__metadata__", st::stored_type::f32, {1}}});
  refused({{"../a", st::stored_type::f32, {1}}});
  refused({{std::string("a\0b", 3), st::stored_type::f32, {1}}});
  refused({{"\xff", st::stored_type::f32, {1}}});
  CHECK_THROWS_WITH_AS(st::writer(dir.file("m"), {{"a\xff", st::stored_type::f32, {1}}}),
                       doctest::Contains("a tensor's name is not valid UTF-8: a\xef\xbf\xbd"), belay::usage_error);
  CHECK_THROWS_WITH_AS(st::writer(dir.file("m"), {}, {{"format", "\xc0\xaf"}}),
                       doctest::Contains("a metadata value is not valid UTF-8"), belay::usage_error);
  refused({{std::string(4097, 'n'), st::stored_type::f32, {1}}});
  refused({{"a", st::stored_type::f4, {3}}});
  refused({{"a", st::stored_type::f32, {std::uint64_t{1} << 40, std::uint64_t{1} << 40}}});
}

TEST_CASE("what the system refuses is a file error that names the path and the bytes") {
  folder dir;
  CHECK_THROWS_WITH_AS(st::reader(dir.file("absent")), doctest::Contains("absent: cannot be opened: No such file"),
                       belay::file_error);
  CHECK_THROWS_WITH_AS(st::reader(dir.path), doctest::Contains("is not a regular file"), belay::file_error);
  REQUIRE(::mkfifo(dir.file("pipe").c_str(), 0600) == 0);
  CHECK_THROWS_WITH_AS(st::reader(dir.file("pipe")), doctest::Contains("is not a regular file"), belay::file_error);
  const std::string folder_said =
      "cannot be created: No such file or directory (there is no folder " + dir.path + "/none)";
  CHECK_THROWS_WITH_AS(st::writer(dir.path + "/none/m", {}), doctest::Contains(folder_said.c_str()), belay::file_error);
  std::filesystem::remove(dir.file("pipe"));
  {
    st::writer out(dir.file("m"), {{"a", st::stored_type::f32, {1000}}});
    const std::vector<float> values(1000);
    try {
      const report_test::file_size_limit tight(1024);
      out.write<float>("a", 0, values);
      CHECK(false);
    } catch (const belay::file_error& error) {
      CHECK(error.offset() == 1024);  // the part that fitted was written, the rest was not
      CHECK(std::string(error.what()).find("File too large") != std::string::npos);
    }
    CHECK_THROWS_AS(out.commit(), belay::usage_error);
  }
  CHECK(dir.entries() == 0);
}

TEST_CASE("a file that shrinks after it was opened is an error at the byte where it ends") {
  folder dir;
  write_small_model(dir.file("m"));
  const st::reader in(dir.file("m"));
  std::filesystem::resize_file(dir.file("m"), std::filesystem::file_size(dir.file("m")) - 70);
  std::vector<float> embed(15);
  CHECK_THROWS_WITH_AS(in.read<float>("embed", 0, embed), doctest::Contains("too early"), belay::file_error);
}

TEST_CASE("calls that are interrupted or move one byte are continued") {
  const folder dir;
  faulty_files::trickle = true;
  faulty_files::interrupt = 3;
  st::basic_writer<faulty_files> out(dir.file("m"), {{"a", st::stored_type::u8, {3}}});
  const std::vector<std::uint8_t> values{7, 8, 9};
  out.write<std::uint8_t>("a", 0, values);
  faulty_files::interrupt = 3;
  out.commit();
  faulty_files::interrupt = 3;
  const st::basic_reader<faulty_files> in(dir.file("m"));
  std::vector<std::uint8_t> read(3);
  in.read<std::uint8_t>("a", 0, read);
  CHECK(read == values);
  faulty_files::trickle = false;
}

TEST_CASE("a medium that fails at the end leaves what was there before") {
  const folder dir;
  std::ofstream(dir.file("m")) << "before";
  const auto attempt = [&] {
    st::basic_writer<faulty_files> out(dir.file("m"), {{"a", st::stored_type::u8, {0}}});
    out.commit();
  };
  faulty_files::no_sync = true;
  CHECK_THROWS_WITH_AS(attempt(), doctest::Contains("cannot be brought to the medium"), belay::file_error);
  faulty_files::no_sync = false;
  faulty_files::no_rename = true;
  CHECK_THROWS_WITH_AS(attempt(), doctest::Contains("cannot be replaced"), belay::file_error);
  faulty_files::no_rename = false;
  CHECK(content(dir.file("m")) == "before");
  CHECK(dir.entries() == 1);
  attempt();
  CHECK(content(dir.file("m")).size() > 8);
}
