#include "data/hdf5/hdf5_file.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <numeric>
#include <thread>

#include "data/hdf5/file_seal.h"
#include "data/hdf5/hdf5_handles.h"
#include "runtime/error.h"
#include "runtime/read_file.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Hdf5FileTest : public testing::Test {
 protected:
  fs::path write_sample(const std::string& name, bool sealed = true) {
    const fs::path path = directory_ / name;
    Hdf5Writer writer(path, sealed);
    writer.write("tokens", std::vector<std::int32_t>{1, -2, 3});
    writer.write("offsets", std::vector<std::int64_t>{0, std::int64_t{1} << 40});
    writer.write("bytes", std::vector<std::uint8_t>{0, 255});
    writer.write("empty", std::vector<std::int32_t>{});
    writer.attribute("format", "sample/1 – ü");
    writer.attribute("nothing", "");
    writer.attribute("round", std::int64_t{-7});
    writer.close();
    return path;
  }

  static void put(const fs::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  }

  test::TemporaryDirectory scratch_;
  const fs::path directory_ = scratch_.path();
};

// Valid HDF5 with valid seals, which only our checks refuse.
TEST_F(Hdf5FileTest, WhatNoFileOfOursHoldsIsRefusedBehindAValidSeal) {
  const fs::path other = write_sample("other.h5", false);
  put(directory_ / "raw", std::string(64, 'x'));
  const hsize_t four = 4;
  const hsize_t chunk = 4;
  const auto space = [&] { return H5Screate_simple(1, &four, nullptr); };
  const auto chunked = [&] {
    const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(properties, 1, &chunk);
    H5Pset_fletcher32(properties);
    return properties;
  };
  const auto compressed = [&] {
    const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(properties, 1, &chunk);
    H5Pset_shuffle(properties);
    H5Pset_deflate(properties, 1);
    H5Pset_fletcher32(properties);
    return properties;
  };
  const auto dataset = [&](hid_t file, hid_t type, hid_t properties) {
    H5Dclose(H5Dcreate2(file, "x", type, space(), H5P_DEFAULT, properties, H5P_DEFAULT));
  };
  struct Case {
    const char* reason;
    std::function<void(hid_t file)> make;
  };
  const std::vector<Case> cases{
      {"nothing thrown",
       [&](hid_t file) {
         dataset(file, H5T_STD_I32LE, chunked());
         const std::vector<std::int32_t> values{1, 2, 3, 4};
         const hid_t made = H5Dopen2(file, "x", H5P_DEFAULT);
         H5Dwrite(made, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
         H5Dclose(made);
       }},
      {"nothing thrown",
       [&](hid_t file) {
         const hid_t properties = compressed();
         dataset(file, H5T_STD_I32LE, properties);
         const std::vector<std::int32_t> values{1, 2, 3, 4};
         const hid_t made = H5Dopen2(file, "x", H5P_DEFAULT);
         H5Dwrite(made, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
         H5Dclose(made);
       }},
      {"incomplete", [&](hid_t file) { dataset(file, H5T_STD_I32LE, compressed()); }},
      {"it is a link",
       [&](hid_t file) {
         H5Lcreate_external(other.c_str(), "tokens", file, "x", H5P_DEFAULT, H5P_DEFAULT);
       }},
      {"it is a link",
       [&](hid_t file) {
         H5Gclose(H5Gcreate2(file, "y", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
         H5Lcreate_soft("/y", file, "x", H5P_DEFAULT, H5P_DEFAULT);
       }},
      {"it is a link",
       [&](hid_t file) { H5Lcreate_soft("/nothing", file, "x", H5P_DEFAULT, H5P_DEFAULT); }},
      {"its data are in another file",
       [&](hid_t file) {
         const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
         H5Pset_external(properties, (directory_ / "raw").c_str(), 0, 16);
         dataset(file, H5T_STD_I32LE, properties);
       }},
      {"its layout is not",
       [&](hid_t file) {
         const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
         const hsize_t three = 3;
         H5Pset_virtual(properties, space(), other.c_str(), "tokens",
                        H5Screate_simple(1, &three, nullptr));
         dataset(file, H5T_STD_I32LE, properties);
       }},
      {"its layout is not", [&](hid_t file) { dataset(file, H5T_STD_I32LE, H5P_DEFAULT); }},
      {"its layout is not",
       [&](hid_t file) {
         const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
         H5Pset_layout(properties, H5D_COMPACT);
         dataset(file, H5T_STD_I32LE, properties);
       }},
      {"another filter",
       [&](hid_t file) {
         const hid_t properties = chunked();
         H5Pset_deflate(properties, 9);
         dataset(file, H5T_STD_I32LE, properties);
       }},
      {"another filter",
       [&](hid_t file) {
         const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
         H5Pset_chunk(properties, 1, &chunk);
         dataset(file, H5T_STD_I32LE, properties);
       }},
      {"user-defined",
       [&](hid_t file) {
         const hid_t type = H5Tcopy(H5T_STD_I32LE);
         H5Tcommit2(file, "type", type, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
         dataset(file, type, chunked());
         H5Tclose(type);
       }},
      {"user-defined",
       [&](hid_t file) {
         const hid_t type = H5Tcreate(H5T_COMPOUND, 4);
         H5Tinsert(type, "a", 0, H5T_STD_I32LE);
         dataset(file, type, chunked());
       }},
      {"user-defined",
       [&](hid_t file) {
         const hid_t type = H5Tcopy(H5T_C_S1);
         H5Tset_size(type, H5T_VARIABLE);
         dataset(file, type, H5P_DEFAULT);
       }},
  };
  int number = 0;
  for (const Case& wanted : cases) {
    const fs::path path = directory_ / fmt::format("case-{}.h5", number++);
    SCOPED_TRACE(path);
    {
      const auto lock = hdf5_lock();
      const hid_t creation = H5Pcreate(H5P_FILE_CREATE);
      H5Pset_userblock(creation, kSealBytes);
      const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation, H5P_DEFAULT);
      wanted.make(file);
      H5Fclose(file);
    }
    seal_file(path);
    const std::string said = test::message_of<DataError>([&] {
      const Hdf5Reader reader(path);
      EXPECT_EQ(reader.size("x"), 4);
    });
    EXPECT_THAT(said, HasSubstr(wanted.reason));
    if (said != "nothing thrown") {
      EXPECT_THAT(said, HasSubstr(path.string() + ", 'x': "));
      EXPECT_THROW((void)Hdf5Reader(path).read<std::int32_t>("x"), DataError);
    }
  }
}

TEST_F(Hdf5FileTest, CompressedDatasetsAreSmallAndReadInPlaces) {
  std::vector<std::int32_t> tokens(100'000);
  std::vector<std::int64_t> offsets(1000);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<std::int32_t>(i * i % 1009 % 151'643);
  }
  std::iota(offsets.begin(), offsets.end(), std::int64_t{1} << 40);
  const auto write = [&](const fs::path& path, Hdf5Storage storage) {
    Hdf5Writer writer(path, true, storage);
    writer.write("tokens", tokens);
    writer.write("offsets", offsets);
    writer.write("none", std::vector<std::int64_t>());
    writer.create<float>("slices", 20'000);
    for (std::int64_t begin = 0; begin < 20'000; begin += 5000) {
      writer.write_slice<float>("slices", begin,
                                std::vector<float>(5000, static_cast<float>(begin)));
    }
    writer.close();
    return fs::file_size(path);
  };
  const fs::path path = directory_ / "compressed.h5";
  EXPECT_LT(2 * write(path, Hdf5Storage::compressed),
            write(directory_ / "plain.h5", Hdf5Storage::plain));
  const Hdf5Reader reader(path);
  EXPECT_EQ(reader.read<std::int32_t>("tokens"), tokens);
  EXPECT_EQ(reader.read<std::int64_t>("offsets"), offsets);
  EXPECT_TRUE(reader.read<std::int64_t>("none").empty());
  EXPECT_EQ(reader.read<float>("slices").at(7000), 5000);
  for (const std::int64_t begin : {0, 8190, 54'321, 99'900}) {
    std::vector<std::int32_t> part(100);
    reader.read_slice<std::int32_t>("tokens", begin, part);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), tokens.begin() + begin)) << begin;
  }
}

TEST_F(Hdf5FileTest, AFailureThatPassesIsNotForgotten) {
  // A chunk is written at close; the disk is full only then.
  Hdf5Writer writer(directory_ / "passing.h5", false);
  const std::vector<std::int32_t> values(12 << 10, 7);  // 48 KiB, one chunk
  const test::FileSizeLimit limit(16 << 10);
  EXPECT_THROW(writer.write("tokens", values), EnvironmentError);
}

TEST_F(Hdf5FileTest, ReservedDatasetsAreFilledFromOutside) {
  const fs::path path = directory_ / "reserved.h5";
  std::vector<float> values(3000);
  std::iota(values.begin(), values.end(), 0.5F);
  std::uint64_t small = 0;
  std::uint64_t large = 0;
  {
    Hdf5Writer writer(path, false);
    small = writer.reserve<float>("small", 3);
    large = writer.reserve<float>("large", 3000);
    writer.attribute("note", "beside them");
    writer.close();
  }
  EXPECT_EQ(large % kReservedAlignment, 0U);
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(large));
    file.write(reinterpret_cast<const char*>(values.data()), 3000 * sizeof(float));
  }
  {
    const auto lock = hdf5_lock();
    const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
    const hid_t set = H5Dopen2(file, "large", H5P_DEFAULT);
    std::vector<float> back(3000);
    EXPECT_GE(H5Dread(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, back.data()), 0);
    EXPECT_EQ(back, values);
    H5Dclose(set);
    H5Fclose(file);
  }
  const Hdf5Reader reader(path, SealCheck::none);
  EXPECT_EQ(reader.text_attribute("note"), "beside them");
  EXPECT_EQ(reader.locate<float>("small", 3), small);
  EXPECT_EQ(reader.locate<float>("large", 3000), large);
  EXPECT_THROW((void)reader.locate<float>("large", 2999), DataError);
  EXPECT_THROW((void)reader.locate<std::int32_t>("large", 3000), DataError);
  EXPECT_THROW((void)reader.locate<float>("absent", 1), DataError);
  EXPECT_THROW((void)reader.read<float>("large"), DataError);
}

TEST_F(Hdf5FileTest, AFileThatEndsBeforeItsReservedDatasetIsRefused) {
  const fs::path path = directory_ / "reserved.h5";
  {
    Hdf5Writer writer(path, false);
    static_cast<void>(writer.reserve<float>("x", 3000));
    writer.close();
  }
  const Hdf5Reader reader(path, SealCheck::none);
  fs::resize_file(path, fs::file_size(path) - 4);
  EXPECT_THROW((void)reader.locate<float>("x", 3000), DataError);
}

TEST_F(Hdf5FileTest, AFileThatIsPublishedLateIsWaitedFor) {
  const fs::path path = directory_ / "late.h5";
  for (const auto check : {SealCheck::content, SealCheck::size, SealCheck::none}) {
    const fs::path early = write_sample("early.h5");
    std::jthread publisher([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      fs::rename(early, path);
    });
    const Hdf5Reader reader(path, check, 20);
    EXPECT_EQ(reader.integer_attribute("round"), -7);
    publisher.join();
    fs::remove(path);
  }
}

TEST_F(Hdf5FileTest, AFileThatIsNeverPublishedIsADataErrorAfterTheLimit) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(test::message_of<DataError>(
                  [&] { const Hdf5Reader reader(directory_ / "never.h5", SealCheck::none, 0.2); }),
              HasSubstr("never.h5"));
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(200));
}

TEST_F(Hdf5FileTest, RoundTrip) {
  for (const bool sealed : {true, false}) {
    const Hdf5Reader reader(write_sample("a.h5", sealed),
                            sealed ? SealCheck::content : SealCheck::none);
    EXPECT_EQ(reader.read<std::int32_t>("tokens"), (std::vector<std::int32_t>{1, -2, 3}));
    EXPECT_EQ(reader.read<std::int64_t>("offsets"),
              (std::vector<std::int64_t>{0, std::int64_t{1} << 40}));
    EXPECT_EQ(reader.read<std::uint8_t>("bytes"), (std::vector<std::uint8_t>{0, 255}));
    EXPECT_TRUE(reader.read<std::int32_t>("empty").empty());
    EXPECT_EQ(reader.text_attribute("format"), "sample/1 – ü");
    EXPECT_EQ(reader.text_attribute("nothing"), "");
    EXPECT_EQ(reader.integer_attribute("round"), -7);
    EXPECT_TRUE(reader.has("tokens"));
    EXPECT_FALSE(reader.has("token"));
  }
}

TEST_F(Hdf5FileTest, EqualContentGivesEqualBytes) {
  EXPECT_EQ(read_file(write_sample("a.h5")), read_file(write_sample("b.h5")));
}

TEST_F(Hdf5FileTest, SlicesOfADatasetLargerThanOneTransfer) {
  const fs::path path = directory_ / "large.h5";
  std::vector<float> values(5'000'001);  // 20 MB: more than one slice of 16 MiB
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i % 65537) * 0.5F;
  }
  {
    Hdf5Writer writer(path);
    writer.create<float>("weights", static_cast<std::int64_t>(values.size()));
    const std::span<const float> all(values);
    // Out of order and off the chunk borders.
    writer.write_slice("weights", 3'000'001, all.subspan(3'000'001));
    writer.write_slice("weights", 0, all.first(3'000'001));
    writer.write("whole", values);
    EXPECT_THROW(writer.write_slice("weights", 5'000'000, all.first(2)), InternalError);
    writer.close();
  }
  const Hdf5Reader reader(path);
  EXPECT_EQ(reader.read<float>("weights"), values);
  EXPECT_EQ(reader.read<float>("whole"), values);
  std::vector<float> part(777'777);
  reader.read_slice<float>("weights", 4'000'000, part);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), values.begin() + 4'000'000));
  EXPECT_THROW(reader.read_slice<float>("weights", 4'999'999, std::span(part).first(3)), DataError);
  EXPECT_THROW(reader.read_slice<float>("weights", -1, std::span(part).first(1)), DataError);
}

TEST_F(Hdf5FileTest, WhatIsMissingOrOfAnotherTypeIsNamed) {
  const Hdf5Reader reader(write_sample("a.h5"));
  const auto message_of = [](const auto& action) { return test::message_of<DataError>(action); };
  EXPECT_THAT(message_of([&] { static_cast<void>(reader.read<float>("absent")); }),
              testing::AllOf(HasSubstr("a.h5"), HasSubstr("'absent'")));
  EXPECT_THAT(message_of([&] { static_cast<void>(reader.read<float>("tokens")); }),
              HasSubstr("element type"));
  EXPECT_THAT(message_of([&] { static_cast<void>(reader.text_attribute("round")); }),
              HasSubstr("not a text"));
  EXPECT_THAT(message_of([&] { static_cast<void>(reader.integer_attribute("format")); }),
              HasSubstr("not an integer"));
  EXPECT_THAT(message_of([&] { static_cast<void>(reader.text_attribute("absent")); }),
              HasSubstr("'absent'"));
  EXPECT_THAT(message_of([&] { Hdf5Reader other(directory_ / "none.h5"); }), HasSubstr("none.h5"));
}

TEST_F(Hdf5FileTest, EveryTruncationIsRefused) {
  const std::string whole = read_file(write_sample("a.h5"));
  const fs::path cut = directory_ / "cut.h5";
  for (std::size_t bytes = 0; bytes < whole.size(); bytes += 97) {
    put(cut, whole.substr(0, bytes));
    EXPECT_THROW(Hdf5Reader(cut, SealCheck::size), DataError) << bytes;
    EXPECT_THROW(Hdf5Reader(cut, SealCheck::content), DataError) << bytes;
  }
  put(cut, whole + "x");
  EXPECT_THROW(Hdf5Reader(cut, SealCheck::size), DataError);
}

TEST_F(Hdf5FileTest, EveryFlippedByteIsRefused) {
  const std::string whole = read_file(write_sample("a.h5"));
  const fs::path bad = directory_ / "bad.h5";
  for (std::size_t at = 0; at < whole.size(); at += at < kSealBytes ? 1 : 31) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    put(bad, bytes);
    EXPECT_THROW(Hdf5Reader(bad, SealCheck::content), DataError) << at;
  }
}

TEST_F(Hdf5FileTest, AnUnsealedOrUnfinishedFileIsNoSealedFile) {
  EXPECT_THROW(Hdf5Reader(write_sample("a.h5", false), SealCheck::size), DataError);
  const fs::path path = directory_ / "unfinished.h5";
  {
    Hdf5Writer writer(path);
    writer.write("tokens", std::vector<std::int32_t>{1});
  }
  EXPECT_THROW(Hdf5Reader(path, SealCheck::size), DataError);
}

TEST_F(Hdf5FileTest, AFileThatCannotBeReadIsNotCalledDamaged) {
  // Every read fails with an input/output error.
  const fs::path unreadable = "/proc/self/mem";
  EXPECT_THROW(check_seal(unreadable, SealCheck::size), EnvironmentError);
  EXPECT_THROW(check_seal(unreadable, SealCheck::content), EnvironmentError);
  const fs::path loop = directory_ / "loop.h5";
  fs::create_symlink(loop, loop);
  EXPECT_THROW(check_seal(loop, SealCheck::content), EnvironmentError);
  EXPECT_THROW(Hdf5Reader(loop, SealCheck::content, 0), EnvironmentError);
  EXPECT_THROW(check_seal(directory_ / "absent.h5", SealCheck::content), DataError);
  EXPECT_THROW(Hdf5Reader(directory_ / "absent.h5", SealCheck::content, 0), DataError);
}

TEST_F(Hdf5FileTest, UnwritablePlaceIsAnEnvironmentError) {
  EXPECT_THROW(Hdf5Writer(directory_ / "absent" / "a.h5"), EnvironmentError);
}

TEST_F(Hdf5FileTest, FullDiskIsAnEnvironmentErrorNamingTheFile) {
  const std::string message = test::message_of<EnvironmentError>([&] {
    const test::FileSizeLimit limit(1 << 20);
    Hdf5Writer writer(directory_ / "full.h5");
    writer.write("tokens", std::vector<std::int32_t>(1 << 20, 5));
    writer.close();
  });
  EXPECT_THAT(message, HasSubstr("full.h5"));
}

TEST_F(Hdf5FileTest, HandlesMove) {
  Hdf5Handle empty;
  EXPECT_FALSE(empty.valid());
  Hdf5Reader first(write_sample("a.h5"));
  Hdf5Reader second(std::move(first));
  first = Hdf5Reader(write_sample("b.h5"));
  EXPECT_EQ(second.read<std::int32_t>("tokens").size(), 3u);
  EXPECT_EQ(first.read<std::int32_t>("tokens").size(), 3u);
}

TEST_F(Hdf5FileTest, ThreadsWithTheirOwnReadersAreSerialised) {
  const fs::path path = write_sample("a.h5");
  std::vector<std::thread> threads;
  std::atomic<int> good = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        const Hdf5Reader reader(path);
        good += reader.read<std::int32_t>("tokens").size() == 3 ? 1 : 0;
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(good, 200);
}

TEST(Hdf5Lock, AWriterGivesWayToAWaitingReader) {
  std::atomic<bool> served = false;
  auto writing = hdf5_lock(Hdf5Turn::write);
  std::thread reader([&] {
    const auto reading = hdf5_lock();
    served = true;
  });
  while (writing.mutex()->readers_waiting() == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_FALSE(served);
  writing.unlock();
  writing = hdf5_lock(Hdf5Turn::write);
  EXPECT_TRUE(served) << "the writer's next slice came first";
  const auto again = hdf5_lock();  // recursive, in either role
  const auto and_again = hdf5_lock(Hdf5Turn::write);
  writing.unlock();
  reader.join();
}

}  // namespace
}  // namespace jforge
